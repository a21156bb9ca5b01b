"""Entry point: every way a command can end becomes an exit code and at most one line on stderr.

Only click is imported with the commands; each imports what it works with when it runs, so that
``commitfs --help`` and completion stay fast.
"""

import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from commitfs import __version__
from commitfs.cli.cat import cat
from commitfs.cli.check import check
from commitfs.cli.log import log
from commitfs.cli.ls import ls
from commitfs.cli.mount import mount
from commitfs.cli.output import complain, drop, flush
from commitfs.cli.salvage import salvage
from commitfs.cli.show import show
from commitfs.cli.stats import stats
from commitfs.cli.umount import umount
from commitfs.errors import CommitfsError, one_line

COMPLETE = "_COMMITFS_COMPLETE"
"""Set by a shell that completes a command line."""
BUG = 70
"""Exit code for an error nobody foresaw (EX_SOFTWARE)."""


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    invoke_without_command=True,
)
@click.version_option(__version__, prog_name="commitfs", message="%(prog)s %(version)s")
@click.pass_context
def commands(ctx: click.Context) -> None:
    """A filesystem in which every save is a commit.

    STORE is the file that holds everything, or any path inside a mount of it.  ID names a commit: its
    number, latest, latest~3, main, or a time such as 2026-11-30T14:00.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


for command in (mount, umount, log, show, ls, cat, check, salvage, stats):
    commands.add_command(command)


def main() -> NoReturn:
    _have_streams()
    if COMPLETE in os.environ:
        commands.main(prog_name="commitfs", complete_var=COMPLETE)
    sys.exit(run(sys.argv[1:]))


def run(argv: Sequence[str]) -> int:
    """Run one command; returns its exit code."""
    try:
        # Not click's own main: it ends with an empty line on an interrupt and with 1 on a broken pipe.
        with commands.make_context("commitfs", list(argv)) as ctx:
            code = commands.invoke(ctx)
        flush()
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as exc:
        return exc.exit_code
    except (KeyboardInterrupt, click.Abort):
        return 128 + signal.SIGINT
    except click.ClickException as exc:
        complain(exc.format_message())
        return exc.exit_code
    except CommitfsError as exc:
        complain(str(exc))
        return exc.exit_code
    except BrokenPipeError:
        # As programs end that SIGPIPE kills: the reader of our output is gone, and knows.
        return 128 + signal.SIGPIPE
    except OSError as exc:
        complain(one_line(exc))
        return 1
    except MemoryError:
        complain("out of memory")
        return 1
    except Exception as exc:
        complain(f"this is a bug in commitfs: {type(exc).__name__}: {exc}")
        return BUG
    finally:
        _flush_or_drop()


def _have_streams() -> None:
    """Descriptors 0 to 2 are open whatever the caller did, so that no file of ours gets their numbers."""
    try:
        while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
            pass
        os.close(fd)
    except OSError as exc:
        if sys.stderr is not None:
            complain(one_line(exc))
        sys.exit(1)
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stdout is None:
        complain("standard output is closed")
        sys.exit(1)


def _flush_or_drop() -> None:
    """Where output cannot be written, that was told already."""
    try:
        sys.stdout.flush()
    except OSError:
        drop()
