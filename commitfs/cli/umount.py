"""``commitfs umount``"""

import os

import click


@click.command()
@click.argument("mountpoint")
def umount(mountpoint: str) -> None:
    """Unmount; returns when all is durable."""
    from commitfs.cli.stores import given
    from commitfs.daemon.preflight import find_fusermount
    from commitfs.daemon.umount import umount as unmount

    unmount(given(mountpoint, "MOUNTPOINT"), find_fusermount(os.environ.get("PATH", os.defpath)))
