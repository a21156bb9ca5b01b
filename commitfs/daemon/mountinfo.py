"""What is mounted where, as the kernel tells it.

Read from /proc/self/mountinfo, never by touching a mount: a mount whose daemon is stuck or dead must
not be able to hold up those who want to find or remove it.
"""

import re
from dataclasses import dataclass

MOUNTINFO = "/proc/self/mountinfo"

_OCTAL = re.compile(rb"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    device: str
    """``major:minor`` of the file system, unique among those mounted now."""
    point: bytes
    read_only: bool
    fstype: str
    source: bytes
    owner: int
    """uid of the user who mounted it; 0 where the file system does not say."""


def _plain(field: bytes) -> bytes:
    return _OCTAL.sub(lambda match: bytes([int(match[1], 8)]), field)


def parse(text: bytes) -> list[Mount]:
    """Mounts in the order of `text`, which is mountinfo's: of two at one place the later hides the other."""
    found = []
    for line in text.split(b"\n"):
        left, separator, right = line.partition(b" - ")
        before, after = left.split(b" "), right.split(b" ")
        if not separator or len(before) < 6 or len(after) < 3:
            continue
        options = before[5].split(b",")
        owner = next((int(o[8:]) for o in after[2].split(b",") if o.startswith(b"user_id=")), 0)
        found.append(
            Mount(
                before[2].decode("ascii"),
                _plain(before[4]),
                b"ro" in options or b"ro" in after[2].split(b","),
                after[0].decode("ascii", "backslashreplace"),
                _plain(after[1]),
                owner,
            )
        )
    return found


def mounts() -> list[Mount]:
    with open(MOUNTINFO, "rb") as file:
        return parse(file.read())


def mounted_at(point: bytes) -> Mount | None:
    """The topmost mount at exactly this place (a path without symlinks)."""
    return next((mount for mount in reversed(mounts()) if mount.point == point), None)


def mounted_over(path: bytes) -> Mount | None:
    """The mount that `path` (absolute, without symlinks) lies in."""
    best: Mount | None = None
    for mount in mounts():
        within = path == mount.point or path.startswith(mount.point.rstrip(b"/") + b"/")
        if within and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best
