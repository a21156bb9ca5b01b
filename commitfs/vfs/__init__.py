"""All semantics of the filesystem.  Never imports pyfuse3; promises P1 to P9 are kept here."""
