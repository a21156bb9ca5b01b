"""commitfs: a filesystem in which every save is a commit."""

__version__ = "0.1.0"
