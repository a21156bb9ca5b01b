"""What lies on disk: bytes in, frozen values out.  No I/O, no clock, no event loop (docs/format.md)."""
