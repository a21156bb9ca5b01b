"""The life of a mount: fork, open, serve, signals, unmount."""
