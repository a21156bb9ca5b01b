"""P6: a daemon killed under many writers loses nothing that returned, and leaves no half file.

The short form of tests/torture/kill.py, and proof that it would see a daemon that does.
"""

import os
import signal
from pathlib import Path

import pytest

from tests.support.kill_history import LOST, Wrong
from tests.torture.kill import Hung, Torture

pytestmark = pytest.mark.mounted

# A daemon that lets close return when its commit is queued: whoever writes next takes it along.
TOO_EARLY = """
import random, sys
from commitfs.store.committer import GroupCommitter
wait = GroupCommitter.acknowledge
async def acknowledge(self, ticket):
    if ticket.record.id < 20 or random.random() < 0.2:
        await wait(self, ticket)
GroupCommitter.acknowledge = acknowledge
from commitfs.cli import main
sys.exit(main())
"""


def test_p6_killed_again_and_again(tmp_path: Path) -> None:
    torture = Torture(tmp_path, seed=1, writers=5)
    torture.run(8, per_store=8, every=4)
    counts = torture.counts
    assert (counts["rounds"], counts["interrupted"], counts["checks"]) == (8, 2, 2)
    assert counts["saves"] >= 8
    assert counts["commits"] <= counts["again"]


def test_a_daemon_that_answers_too_early_is_found(tmp_path: Path) -> None:
    torture = Torture(tmp_path, seed=2, writers=3, program=("-c", TOO_EARLY))
    with pytest.raises(Wrong, match="lost"):
        torture.run(20, per_store=20)
    assert torture.counts[LOST] == 1


def test_a_mount_that_hangs_is_no_success(tmp_path: Path) -> None:
    torture = Torture(tmp_path, seed=3, writers=2)

    def rounds() -> None:
        with torture.store() as one:
            one.round()
            one.mount.start()
            os.kill(one.mount.pid, signal.SIGSTOP)
            one.writers.patience = 1.0
            one.round()

    with pytest.raises(Hung):
        rounds()
    assert torture.counts["rounds"] == 1
