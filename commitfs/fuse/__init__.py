"""The kernel adapter: the only importer of pyfuse3.  It translates; the vfs decides."""
