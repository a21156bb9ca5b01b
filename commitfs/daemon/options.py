"""Mount options as given with ``-o``."""

import math
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from commitfs.errors import UsageError
from commitfs.format.slot import ALIGNMENTS

KNOWN = (
    "ro, rw, settle=SECONDS, history=visible, history=hidden, align=8|512|4096, allow_other, fsname=NAME, "
    "and mount(8)'s exec, noexec, suid, nosuid, dev, nodev, atime, noatime, nodiratime, sync, async, dirsync"
)

_FLAGS = frozenset(
    [
        "exec",
        "noexec",
        "suid",
        "nosuid",
        "dev",
        "nodev",
        "atime",
        "noatime",
        "nodiratime",
        "sync",
        "async",
        "dirsync",
    ]
)
_FOR_OTHERS = frozenset(
    [
        "defaults",
        "default_permissions",
        "auto",
        "noauto",
        "user",
        "nouser",
        "users",
        "owner",
        "group",
        "nofail",
        "_netdev",
        "relatime",
    ]
)
"""What means something to mount(8) and systemd only, and what always holds here anyway."""

_SPLIT = re.compile(r"(?<!\\),")


@dataclass(frozen=True, slots=True)
class MountOptions:
    read_only: bool = False
    settle: float = 1.0
    """Seconds until a staged change is committed; 0: each is a commit of its own, at once."""
    history_visible: bool = False
    allow_other: bool = False
    align: int | None = None
    """Alignment of a store made by this mount, in bytes; one that is there must have it.  None: 8, or
    whatever it has."""
    fsname: bytes | None = None
    """Name shown as the mount's source in place of the store's path."""
    flags: tuple[str, ...] = ()


def parse_options(given: Iterable[str]) -> MountOptions:
    """Each of `given` is a list with commas between; of two that contradict the later one holds.

    Raises UsageError that names the options there are.
    """
    options = MountOptions()
    for text in given:
        for word in _SPLIT.split(text):
            if word:
                options = _with(options, word)
    return options


def _with(options: MountOptions, word: str) -> MountOptions:
    name, equals, value = word.partition("=")
    if name in ("settle", "history", "align", "fsname") and not (equals and value):
        raise UsageError(f"mount option {name} needs a value; known options are {KNOWN}")
    if name == "settle":
        return replace(options, settle=_seconds(value))
    if name == "history":
        if value not in ("visible", "hidden"):
            raise UsageError(f"history={value}: it can be visible or hidden")
        return replace(options, history_visible=value == "visible")
    if name == "align":
        return replace(options, align=_alignment(value))
    if name == "fsname":
        return replace(options, fsname=os.fsencode(value.replace("\\,", ",")))
    if word in ("ro", "rw"):
        return replace(options, read_only=word == "ro")
    if word == "allow_other":
        return replace(options, allow_other=True)
    if word in _FLAGS:
        return replace(options, flags=(*options.flags, word))
    if word in _FOR_OTHERS or name == "comment" or name.startswith("x-"):
        return options
    raise UsageError(f"unknown mount option {word!r}; known options are {KNOWN}")


def _seconds(value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not (math.isfinite(seconds) and seconds >= 0):
        raise UsageError(f"settle={value}: it must be a number of seconds, 0 or more")
    return seconds


def _alignment(value: str) -> int:
    for align in ALIGNMENTS:
        if value == str(align):
            return align
    *others, last = map(str, ALIGNMENTS)
    raise UsageError(f"align={value}: it can be {', '.join(others)} or {last}")
