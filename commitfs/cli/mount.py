"""``commitfs mount``"""

import os

import click


@click.command()
@click.argument("store")
@click.argument("mountpoint")
@click.option("-o", "options", multiple=True, metavar="OPTIONS", help="Mount options, with commas between.")
@click.option("-f", "--foreground", is_flag=True, help="Stay in the foreground; messages go to stderr.")
@click.option("--log", "log_file", metavar="FILE", help="Append the daemon's messages to FILE, not syslog.")
def mount(
    store: str, mountpoint: str, options: tuple[str, ...], foreground: bool, log_file: str | None
) -> None:
    """Mount STORE at MOUNTPOINT.

    Makes the store if there is none.  Returns when the mount serves.

    Options: ro (only read), settle=SECONDS (until a change that is no save is committed, 1 by default),
    history=visible (list .commits in the root), allow_other (let other users in), fsname=NAME,
    align=512 or align=4096 (a store made now is for a disk that may damage what lies beside a write it was
    interrupted in), and the usual ones of mount(8).
    """
    from commitfs.cli.stores import given
    from commitfs.daemon.options import parse_options
    from commitfs.daemon.preflight import check_allow_other, check_device, find_fusermount

    parsed = parse_options(options)
    store_file, where = given(store, "STORE"), given(mountpoint, "MOUNTPOINT")
    log_to = None if log_file is None else given(log_file, "FILE of --log")
    if parsed.allow_other:
        check_allow_other()
    check_device()
    fusermount = find_fusermount(os.environ.get("PATH", os.defpath))

    # pyfuse3 and trio, which the checks above can do without.
    from commitfs.daemon.launch import launch
    from commitfs.daemon.mount import Plan

    plan = Plan(os.path.realpath(store_file), os.path.realpath(where), parsed, fusermount)
    launch(plan, foreground=foreground, log_file=log_to, say=_say)


def _say(line: str) -> None:
    if line:
        click.echo(f"commitfs: {line}", err=True)
