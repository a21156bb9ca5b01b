"""The rows: one module each, with a ``TITLE`` and ``measure(bench: Bench) -> Report``."""
