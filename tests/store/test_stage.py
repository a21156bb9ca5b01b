"""Stages: data in the log before the commit that refers to it."""

import errno
import os
import random
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest
import trio

from commitfs.errors import ReadOnlyError
from commitfs.format.record import STAGE, WalkState, walk
from commitfs.native import crc32c
from commitfs.store.committer import GroupCommitter
from commitfs.store.file import WriteFailed
from commitfs.store.stage import OUTSTANDING, PUT_LIMIT, Stager
from commitfs.store.store import Store
from commitfs.types import Buffer
from tests.support import stores
from tests.support.memory_file import MemoryDisk, MemoryFile
from tests.support.stores import LimitedDisk, ids, open_store, queue, until

MIB = 1 << 20


@asynccontextmanager
async def staging(store: Store) -> AsyncIterator[tuple[GroupCommitter, Stager]]:
    committer = GroupCommitter(store, inline=True)
    stager = Stager(store, committer)
    async with trio.open_nursery() as nursery:
        await nursery.start(committer.run)
        yield committer, stager
        nursery.cancel_scope.cancel()


def stages(disk: MemoryDisk, store: Store) -> list[tuple[int, int]]:
    state = WalkState.at_start(store.store_number)
    image, found = bytes(disk.cache), []
    need = 1
    while need:
        need, records = walk(image[state.offset :], state.offset, state, crc32c)
        found += [(record.offset, record.end) for record in records if record.kind == STAGE]
        if state.offset >= len(image):
            break
    return found


async def test_data_is_readable_at_once_and_after_a_reopen() -> None:
    disk = stores.disk()
    store = open_store(disk, writable=True)
    random_ = random.Random(3)
    puts: list[tuple[int, bytes]] = []
    async with staging(store) as (committer, stager):
        for n in range(12):
            data = random_.randbytes(random_.choice((1, 4096, 5000, MIB)))
            offset = await stager.put(data)
            assert offset % 4096 == 0
            puts.append((offset, data))
            for at, expected in puts:
                assert store.read(at, len(expected)) == expected
            if n % 3 == 0:
                await committer.acknowledge(queue(store, b"between"))
        await stager.sync()
        await committer.acknowledge(queue(store, b"refers to it"))
        stager.close()
    store.close()
    again = open_store(disk, writable=True)
    assert again.writable
    assert again.durable_id == 5
    for at, expected in puts:
        assert again.read(at, len(expected)) == expected
    spans = sorted((at, at + len(data)) for at, data in puts)
    assert all(a[1] <= b[0] for a, b in pairwise(spans))
    found = stages(disk, store)
    assert all(any(start < at < end for start, end in found) for at, _ in spans)


async def test_pieces_grow_by_demand_and_share_their_remainder() -> None:
    disk = stores.disk()
    store = open_store(disk, writable=True)
    async with staging(store) as (_, stager):
        for _ in range(10):
            await stager.put(bytes(4096))
        await stager.sync()
        assert len(stages(disk, store)) == 1
        for _ in range(20):
            await stager.put(bytes(PUT_LIMIT))
        await stager.sync()
    sizes = [end - start for start, end in stages(disk, store)]
    assert len(sizes) <= 6
    assert all(b > a for a, b in pairwise(sizes))


async def test_what_no_put_took_is_given_back() -> None:
    disk = stores.disk()
    punched: list[tuple[int, int]] = []

    class Punching(MemoryFile):
        def punch(self, offset: int, length: int) -> None:
            punched.append((offset, offset + length))
            super().punch(offset, length)

    store = Store.open("memory", writable=True, opener=lambda _path, _writable: Punching(disk))
    async with staging(store) as (_, stager):
        offset = await stager.put(b"x" * 5000)
        await stager.sync()
        stager.close()
        stager.close()
    [(_, end)] = stages(disk, store)
    assert punched == [(offset + 8192, end)]


async def test_memory_is_bounded() -> None:
    disk = stores.disk()
    gate = threading.Semaphore(0)

    class Slow(MemoryFile):
        def write_stage(self, data: Buffer, offset: int) -> None:
            assert gate.acquire(timeout=20)
            super().write_stage(data, offset)

    store = Store.open("memory", writable=True, opener=lambda _path, _writable: Slow(disk))
    done: list[int] = []
    async with staging(store) as (_, stager):

        async def putting() -> None:
            for _ in range(6):
                done.append(await stager.put(bytes(MIB)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(putting)
            for let in range(6):
                await until(lambda let=let: len(done) >= min(OUTSTANDING + let, 6))  # type: ignore[misc]
                await trio.sleep(0.02)
                assert len(done) == min(OUTSTANDING + let, 6)
                gate.release()
        await stager.sync()


async def test_sync_covers_what_was_put_before_it() -> None:
    disk = stores.disk()
    synced: list[int] = []

    class Noting(MemoryFile):
        written = 0

        def write_stage(self, data: Buffer, offset: int) -> None:
            super().write_stage(data, offset)
            self.written += 1

        def sync_stage(self) -> None:
            synced.append(self.written)

    store = Store.open("memory", writable=True, opener=lambda _path, _writable: Noting(disk))
    async with staging(store) as (_, stager):
        for n in range(1, 4):
            await stager.put(b"x")
            await stager.sync()
            assert synced[-1] >= n
        await stager.sync()
        assert len(synced) == 3, "nothing to do for it"


async def test_no_room_before_anything_is_accepted() -> None:
    disk = stores.limited_disk()
    store = open_store(disk, writable=True)
    async with staging(store) as (committer, stager):
        await stager.put(bytes(MIB))
        await stager.sync()
        assert isinstance(disk, LimitedDisk)
        disk.limit = len(disk.cache) + 3 * MIB

        async def fill() -> None:
            for _ in range(20):
                await stager.put(bytes(MIB))

        with pytest.raises(OSError, match="space") as caught:
            await fill()
        assert caught.value.errno == errno.ENOSPC
        assert store.latched is None
        await committer.acknowledge(queue(store, b"small ones still fit"))
        disk.limit = 1 << 40
        await stager.put(bytes(MIB))
        await stager.sync()


async def test_no_room_for_what_was_accepted_is_told_and_tried_again() -> None:
    # Where the file system has no blocks in spite of the reservation.
    disk = stores.disk()

    class Full(MemoryFile):
        full = True

        def write_stage(self, data: Buffer, offset: int) -> None:
            if self.full:
                raise WriteFailed(errno.ENOSPC, "No space left on device")
            super().write_stage(data, offset)

    file = Full(disk)
    store = Store.open("memory", writable=True, opener=lambda _path, _writable: file)
    async with staging(store) as (_, stager):
        places = [await stager.put(bytes([n]) * MIB) for n in range(OUTSTANDING)]
        for _ in range(2):
            with pytest.raises(OSError, match="space"):
                await stager.put(b"x")
            with pytest.raises(OSError, match="space"):
                await stager.sync()
        assert store.latched is None
        assert [store.read(at, 1) for at in places] == [b"\0", b"\1"]
        file.full = False
        await stager.put(b"x")
        await stager.sync()
        assert [disk.cache[at] for at in places] == [0, 1]


@pytest.mark.parametrize("what", ["write_stage", "sync_stage"])
async def test_a_failure_latches(what: str) -> None:
    disk = stores.disk()

    class Failing(MemoryFile):
        def write_stage(self, data: Buffer, offset: int) -> None:
            if what == "write_stage":
                raise OSError(errno.EIO, "device")
            super().write_stage(data, offset)

        def sync_stage(self) -> None:
            raise OSError(errno.EIO, "device")

    store = Store.open("memory", writable=True, opener=lambda _path, _writable: Failing(disk))
    async with staging(store) as (committer, stager):
        offset = await stager.put(b"mine")
        with pytest.raises((OSError, ReadOnlyError)):
            await stager.sync()
        assert store.latched is not None
        assert store.read(offset, 4) == b"mine"
        with pytest.raises(ReadOnlyError):
            await stager.put(b"x")
        with pytest.raises(ReadOnlyError):
            store.begin()
        await committer.drain()


async def test_without_a_background_the_callers_write() -> None:
    disk = stores.disk()
    store = open_store(disk, writable=True)
    stager = Stager(store, GroupCommitter(store))
    places = [await stager.put(bytes([n]) * MIB) for n in range(5)]
    await stager.sync()
    assert [disk.cache[at] for at in places] == list(range(5))


async def test_commits_and_stages_from_many_tasks() -> None:
    disk = stores.disk()
    store = open_store(disk, writable=True)
    kept: dict[int, bytes] = {}
    async with staging(store) as (committer, stager):

        async def task(seed: int) -> None:
            random_ = random.Random(seed)
            for _ in range(10):
                if random_.random() < 0.5:
                    data = random_.randbytes(random_.randrange(1, 300_000))
                    kept[await stager.put(data)] = data
                    await stager.sync()
                await committer.acknowledge(queue(store, random_.randbytes(random_.randrange(5000))))

        async with trio.open_nursery() as nursery:
            for seed in range(8):
                nursery.start_soon(task, seed)
    store.close()
    again = open_store(disk, writable=True)
    assert ids(again) == list(range(80, 0, -1))
    for at, data in kept.items():
        assert again.read(at, len(data)) == data


async def test_on_a_real_file(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    Store.create(path)
    store = Store.open(path, writable=True)
    kept = {}
    async with staging(store) as (committer, stager):
        for size in (1, 4096, 70_000, MIB, MIB, MIB, 12345):
            data = os.urandom(size)
            kept[await stager.put(data)] = data
        await stager.sync()
        await committer.acknowledge(queue(store))
        stager.close()
    store.close()
    again = Store.open(path)
    assert again.durable_id == 1
    for at, data in kept.items():
        assert again.read(at, len(data)) == data
    again.close()
