"""The kernel adapter: the only importer of pyfuse3.  It translates; the vfs decides."""

SUBTYPE = "commitfs"
FSTYPE = "fuse." + SUBTYPE
"""File system type of a mount, as /proc/self/mountinfo shows it."""
