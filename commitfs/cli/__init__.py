"""The command line: the only layer that prints, reads the environment and exits."""

from commitfs.cli.main import main

__all__ = ["main"]
