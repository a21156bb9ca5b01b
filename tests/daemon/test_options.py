"""-o options: each has one meaning, and a wrong one says which there are."""

import math

import pytest

from commitfs.daemon.options import MountOptions, parse_options
from commitfs.errors import UsageError


def test_none_given() -> None:
    assert parse_options([]) == MountOptions(False, 1.0, False, False, None, None, ())
    assert parse_options(["", ","]) == MountOptions()


GOOD = [
    ("ro", MountOptions(read_only=True)),
    ("ro,rw", MountOptions()),
    ("rw,ro", MountOptions(read_only=True)),
    ("settle=0", MountOptions(settle=0.0)),
    ("settle=2.5", MountOptions(settle=2.5)),
    ("settle=1,settle=3", MountOptions(settle=3.0)),
    ("history=visible", MountOptions(history_visible=True)),
    ("history=visible,history=hidden", MountOptions()),
    ("allow_other", MountOptions(allow_other=True)),
    ("align=8", MountOptions(align=8)),
    ("align=4096,align=512", MountOptions(align=512)),
    ("fsname=a\\,b", MountOptions(fsname=b"a,b")),
    ("fsname=\udcff", MountOptions(fsname=b"\xff")),
    ("noexec,nosuid", MountOptions(flags=("noexec", "nosuid"))),
    ("defaults,_netdev,nofail,x-systemd.automount,comment=mine,user", MountOptions()),
    ("default_permissions", MountOptions()),
]


@pytest.mark.parametrize(("text", "wanted"), GOOD)
def test_good(text: str, wanted: MountOptions) -> None:
    assert parse_options([text]) == wanted
    assert parse_options(text.replace("\\,", "\0").split(",") if "\\" not in text else [text]) == wanted


@pytest.mark.parametrize("value", ["", "soon", "-1", "nan", "inf", "-inf", "1s", "0x10", "1,5x"])
def test_settle_is_a_number_of_seconds(value: str) -> None:
    with pytest.raises(UsageError, match="settle"):
        parse_options([f"settle={value}"])


@pytest.mark.parametrize("text", ["history", "history=", "align", "fsname", "fsname=", "settle"])
def test_options_that_need_a_value(text: str) -> None:
    with pytest.raises(UsageError, match="needs a value"):
        parse_options([text])


@pytest.mark.parametrize(
    "value", ["0", "16", "1024", "8192", "-512", "0x200", "512.0", "4k", " 512", "08", "all"]
)
def test_alignment_is_one_of_three(value: str) -> None:
    with pytest.raises(UsageError, match="8, 512 or 4096"):
        parse_options([f"align={value}"])


@pytest.mark.parametrize(
    "text", ["nonsense", "ro=1", "allow_root", "RO", "settle_=1", "history=maybe", "a\nb"]
)
def test_unknown_ones_are_refused_with_those_there_are(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_options(["ro", text])
    assert text.startswith("history") or "settle=SECONDS" in str(caught.value)
    assert "\n" not in str(caught.value), "one line"


def test_settle_is_finite() -> None:
    assert math.isfinite(parse_options(["settle=1e300"]).settle)
