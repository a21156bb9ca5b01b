"""Entry point: every way a command can end becomes an exit code and at most one line on stderr.

Only click is imported with the commands; each imports what it works with when it runs, so that
``commitfs --help`` and completion stay fast.
"""

import errno
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
from commitfs.cli.output import complain
from commitfs.cli.show import show
from commitfs.cli.stats import stats
from commitfs.cli.umount import umount
from commitfs.errors import CommitfsError

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


for command in (mount, umount, log, show, ls, cat, check, stats):
    commands.add_command(command)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    sys.exit(run(argv))


def run(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    try:
        code = commands.main(args=argv, prog_name="commitfs", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except BrokenPipeError:
        return _nobody_listens()
    except (KeyboardInterrupt, click.Abort):
        return 128 + signal.SIGINT
    except click.ClickException as exc:
        complain(exc.format_message())
        return exc.exit_code
    except CommitfsError as exc:
        complain(str(exc))
        return exc.exit_code
    except OSError as exc:
        if exc.errno == errno.EPIPE:
            return _nobody_listens()
        complain(_os_error(exc))
        return 1
    except MemoryError:
        complain("out of memory")
        return 1
    except Exception as exc:
        complain(f"this is a bug in commitfs: {type(exc).__name__}: {exc}")
        return BUG


def _nobody_listens() -> int:
    """The reader of our output is gone: end quietly, as programs do that SIGPIPE kills."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
    return 128 + signal.SIGPIPE


def _os_error(exc: OSError) -> str:
    reason = exc.strerror or str(exc)
    if exc.filename is None:
        return reason
    name = exc.filename
    return f"{os.fsdecode(name) if isinstance(name, bytes) else name}: {reason}"
