"""The command line: the only layer that prints, reads the environment and exits."""

from commitfs.cli.app import main

__all__ = ["main"]
