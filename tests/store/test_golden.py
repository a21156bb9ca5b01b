"""Files written by earlier versions are read for ever."""

from pathlib import Path

import pytest

from commitfs.native import crc32c
from commitfs.store.store import Store
from tests.support.memory_file import MemoryDisk
from tests.support.stores import commit, ids, open_store

GOLDEN = Path(__file__).parents[1] / "golden"


def golden(name: str) -> MemoryDisk:
    return MemoryDisk((GOLDEN / name).read_bytes())


def check(store: Store) -> None:
    for commit_id in range(1, 21):
        record = store.record(commit_id)
        assert record.time_ns == 1_800_000_000_000_000_000 + commit_id
        assert record.branch == commit_id % 3
        data = store.bytes_of(record)
        assert data.startswith(b"payload of commit %d\n" % commit_id)
        assert crc32c(data) == record.bytes_crc
        expected = sorted((b"key %d" % n, b"value %d" % n) for n in range(1, commit_id + 1))
        assert list(store.tree(record).scan(b"")) == expected


@pytest.mark.parametrize("writable", [False, True])
def test_puretre3(writable: bool) -> None:
    disk = golden("puretre3.store")
    store = open_store(disk, writable=writable)
    assert ids(store) == list(range(20, 0, -1))
    check(store)
    if writable:
        commit(store)
        store.close()
        check(open_store(disk))


def test_puretre2() -> None:
    disk = golden("puretre2.store")
    store = open_store(disk)
    assert store.head is not None
    assert store.bytes_of(store.head) == b"payload of commit 3\n"
    assert (store.head.id, store.head.time_ns) == (3, 1_700_000_000_000_000_003)
    store = open_store(disk, writable=True)
    commit(store)
    assert ids(store) == [5, 4]
