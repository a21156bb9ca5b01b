"""What commands print: bytes, whatever the locale says, so that names come out as they are."""

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from commitfs.errors import CommitfsError, one_line

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def complain(message: str) -> None:
    """One line on stderr."""
    sys.stderr.write(f"commitfs: {printable(message)}\n")
    sys.stderr.flush()


def code_of(work: Callable[[], int], could_not: int) -> int:
    """The exit code `work` returns once all it printed is out, or `could_not` and one line for an error of
    ours or of the machine: never a code that says something else."""
    try:
        code = work()
        flush()
    except (CommitfsError, OSError) as exc:
        if isinstance(exc, BrokenPipeError):
            raise
        complain(one_line(exc))
        return could_not
    return code


def printable(text: str) -> str:
    """`text` without anything that breaks a line or confuses a terminal."""

    def escaped(match: re.Match[str]) -> str:
        code = ord(match[0])
        if 0xDC80 <= code <= 0xDCFF:
            return f"\\x{code - 0xDC00:02x}"
        plain = {9: "\\t", 10: "\\n", 13: "\\r"}.get(code)
        return plain or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")

    return _CONTROL.sub(escaped, text)


def text_of(name: bytes) -> str:
    """A name as text that turns back into the same bytes (PEP 383), whatever the locale."""
    return name.decode("utf-8", "surrogateescape")


def shown(name: bytes) -> str:
    """A name for people to read, on one line."""
    return printable(text_of(name))


def write(data: bytes) -> None:
    """To standard output, which an error then names."""
    with _named():
        sys.stdout.buffer.write(data)


def flush() -> None:
    with _named():
        sys.stdout.flush()


@contextmanager
def _named() -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        drop()
        exc.filename = "standard output"
        raise


def drop() -> None:
    """What cannot be written is told once: it must not be tried again at the next flush or at exit."""
    nowhere = os.memfd_create("dropped")
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def put(text: str) -> None:
    """A line of text for people."""
    write(text.encode("utf-8", "surrogateescape") + b"\n")


def put_json(fields: Mapping[str, object]) -> None:
    """One JSON object as one line of ASCII: bytes that are not UTF-8 become lone surrogates, ``\\udcNN``."""
    write(json.dumps(fields, ensure_ascii=True).encode("ascii") + b"\n")


def size_text(size: int) -> str:
    """1023 B, 1.0 KiB, 2.5 MiB …"""
    if size < 1024:
        return f"{size} B"
    value = float(size)
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        value /= 1024
        if value < 1024 or unit == "PiB":
            break
    return f"{value:.1f} {unit}"


class Progress:
    """A line on stderr that tells how far long work is; nothing where stderr is no terminal."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._last = -1
        self._on = sys.stderr.isatty()

    def __call__(self, done: int, total: int) -> None:
        percent = 100 * done // total if total else 100
        if self._on and percent != self._last:
            self._last = percent
            sys.stderr.write(f"\r{self._what}: {percent} %\x1b[K")
            sys.stderr.flush()

    def clear(self) -> None:
        if self._on and self._last >= 0:
            self._last = -1
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
