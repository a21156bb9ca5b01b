"""What strace saw of one file: writes, changes of size and syncs, as operations of a trace."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.crash_file import Allocate, Op, Punch, Resize, Sync, SyncRange, Write

CALLS = (
    "write,writev,pwrite64,pwritev,pwritev2,truncate,ftruncate,fallocate,fsync,fdatasync,sync_file_range,"
    "sendfile,copy_file_range,splice,mmap,io_uring_setup,io_submit"
)
COMMAND = ("strace", "-f", "-qq", "-y", "-xx", "-s", "33554432", "-e", f"trace={CALLS}", "-e", "signal=none")
"""Put ``-o FILE`` and the command behind it."""

_LINE = re.compile(r"^(?P<pid>\d+)\s+(?P<rest>.*)$")
_CALL = re.compile(r"^(?P<name>\w+)\((?P<args>.*)\)\s+= (?P<result>-?\d+|\?|0x[0-9a-f]+)")
_FD = re.compile(r"^\d+<(?P<path>(?:\\x[0-9a-f]{2}|[^>])*)>")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    args: str
    result: int


def calls(log: str) -> Iterator[Call]:
    """The calls that succeeded, in the order in which they returned."""
    begun: dict[str, str] = {}
    for line in log.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        pid, rest = match["pid"], match["rest"]
        if rest.endswith("<unfinished ...>"):
            begun[pid] = rest.removesuffix("<unfinished ...>").rstrip()
            continue
        if rest.startswith("<... "):
            rest = begun.pop(pid) + rest.split(" resumed>", 1)[1]
        call = _CALL.match(rest)
        if call is None:
            raise ValueError(f"cannot read strace's line: {line[:200]}")
        if call["result"] == "?" or call["result"].startswith("-"):
            continue
        yield Call(call["name"], call["args"], int(call["result"], 0))


def unescape(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


def operations(log: str, path: Path) -> list[Op]:
    """What was done to the file at `path`; raises ValueError for a call that cannot be replayed."""
    wanted = str(path)
    ops: list[Op] = []
    for call in calls(log):
        fd = _FD.match(call.args)
        if fd is None:
            if call.name not in ("mmap", "io_uring_setup", "truncate"):
                raise ValueError(f"no file in {call.name}({call.args[:80]}")
            continue
        seen = fd["path"]
        if (unescape(seen).decode() if "\\x" in seen else seen) != wanted:
            continue
        ops.extend(_decode(call, len(ops)))
    return ops


def _decode(call: Call, now: int) -> Iterator[Op]:
    name, args, done = call.name, call.args, call.result
    if name in ("pwrite64", "pwritev", "pwritev2"):
        data = b"".join(unescape(part) for part in _STRING.findall(args))[:done]
        if len(data) != done:
            raise ValueError(f"strace cut off the data of a {name}")
        tail = args[args.rindex('"') :].split(", ")
        flags = tail.pop() if name == "pwritev2" else "0"
        offset = int(tail[-1])
        yield Write(offset, data)
        if "RWF_DSYNC" in flags:
            yield SyncRange(offset, done, now + 1)
    elif name == "ftruncate":
        yield Resize(int(args.rsplit(", ", 1)[1]))
    elif name == "fallocate":
        _, mode, start, length = args.rsplit(", ", 3)
        if mode == "0":
            yield Allocate(int(start), int(length))
        elif "PUNCH_HOLE" in mode:
            yield Punch(int(start), int(length))
        elif "KEEP_SIZE" not in mode:
            raise ValueError(f"an fallocate of mode {mode}")
    elif name in ("fsync", "fdatasync"):
        yield Sync(now)
    elif name not in ("sync_file_range", "mmap"):
        raise ValueError(f"a {name} on the store, which the recorder knows nothing of")
