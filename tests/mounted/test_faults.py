"""P6 and P7 with faults in the system calls of a daemon: a short form of tests/torture/faults.py."""

from pathlib import Path

import pytest

from tests.support.fault_ledger import Ledger
from tests.support.fault_rounds import Round, Template
from tests.support.mounted import fuse_missing
from tests.support.tracing import Injection, tracing_missing

pytestmark = [
    pytest.mark.mounted,
    pytest.mark.skipif(bool(tracing_missing()), reason=tracing_missing()),
]

SERVING = [
    "pwritev2:error=EIO:3",
    "pwritev2:error=ENOSPC:4+",
    "pwritev2:error=EDQUOT:5",
    "pwritev2:error=ENOSYS:1+",
    "pwritev2:signal=SIGKILL:6",
    "fdatasync:error=EIO:1",
    "fallocate:error=EOPNOTSUPP:1+",
    "pread64:error=EIO:2",
    "pread64:retval=100:3",
]
OPENING = ["openat:error=EMFILE:3", "pread64:retval=0:4", "ftruncate:error=EIO:1", "pwritev2:error=ENOSPC:1"]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    if fuse_missing():
        pytest.skip(fuse_missing())
    return Template(tmp_path_factory.mktemp("faults"))


@pytest.mark.parametrize("opening", [False, True], ids=["serving", "opening"])
def test_p6_what_was_acknowledged_is_there_and_programs_are_told(
    template: Template, tmp_path: Path, opening: bool
) -> None:
    for number, words in enumerate(OPENING if opening else SERVING):
        call, what, when = words.split(":")
        outcome = Round(template, tmp_path / str(number), Injection(call, what, when), opening=opening).run()
        assert outcome.struck, outcome
        assert not outcome.wrong, outcome
        assert outcome.told or outcome.refused or call in ("pread64", "fallocate") or "ENOSYS" in what, (
            outcome
        )


def test_the_ledger_knows_what_is_wrong() -> None:
    """It must be able to fail: each kind of loss is told from what may be there."""
    ledger = Ledger()
    for version in (b"one", b"two", b"three"):
        ledger.attempt(b"f", version)
        if version != b"three":
            ledger.done(b"f")
    ledger.refused(b"f")
    assert [ledger.verdict(b"f", found) for found in (b"two", b"three")] == ["", ""]
    assert [ledger.verdict(b"f", found) for found in (b"one", None)] == ["lost", "lost"]
    assert [ledger.verdict(b"f", found) for found in (b"thr", b"tw", b"")] == ["half"] * 3
    assert ledger.verdict(b"g", b"") == "half"
    ledger.refused(b"f", cut=True)
    assert [ledger.verdict(b"f", found) for found in (b"thr", b"", b"thx", b"threeee")] == [
        "",
        "",
        "half",
        "half",
    ]
    ledger.attempt(b"f", None)
    assert not ledger.settled(b"f")
    ledger.done(b"f")
    assert ledger.settled(b"f")
    assert ledger.verdict(b"f", b"three") == "lost"
    assert ledger.verdict(b"f", None) == ""
    assert ledger.ever(b"f", b"one")
    assert not ledger.ever(b"f", b"four")
