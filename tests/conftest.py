"""What all rings share: mounts only where they can be had, and no unexpected warning in the log."""

import logging
import os
import re
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.support.mounted import fuse_missing

# How long an example takes says something of the machine, not of the code.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "expect_logs(pattern): warnings of commitfs that match it (re.search) are part of the test"
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("mounted") is None:
        return
    reason = fuse_missing()
    if reason and os.environ.get("COMMITFS_REQUIRE_FUSE") == "1":
        pytest.fail(f"COMMITFS_REQUIRE_FUSE=1, but {reason}", pytrace=False)
    elif reason:
        pytest.skip(reason)


@pytest.fixture(autouse=True)
def no_unexpected_warnings(
    request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> Iterator[None]:
    """A record of WARNING or above from a commitfs logger fails the test, unless it is expected."""
    yield
    markers = request.node.iter_markers("expect_logs")
    expected = [re.compile(marker.args[0]) for marker in markers]
    unexpected = [
        f"{record.name}: {record.getMessage()}"
        for when in ("setup", "call", "teardown")
        for record in caplog.get_records(when)
        if record.levelno >= logging.WARNING
        and record.name.split(".")[0] == "commitfs"
        and not any(pattern.search(record.getMessage()) for pattern in expected)
    ]
    if unexpected:
        pytest.fail("unexpected warnings:\n" + "\n".join(unexpected), pytrace=False)
