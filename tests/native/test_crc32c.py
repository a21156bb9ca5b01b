"""CRC32C: published values, and the instruction against the tables."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitfs.native import crc32c, ffi, lib


@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        # RFC 3720, B.4
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_published_values(data: bytes, crc: int) -> None:
    assert crc32c(data) == crc
    assert lib.cfs_crc32c_tables(0, data, len(data)) == crc


# Round the lengths at which one way of computing hands over to the next.
LENGTHS = st.one_of(
    st.integers(0, 40),
    st.sampled_from([765, 768, 771, 1536, 6141, 6144, 6147, 6912, 12288, 14000]).flatmap(
        lambda n: st.integers(n - 3, n + 3)
    ),
)


@given(length=LENGTHS, start=st.integers(0, 8), seed=st.integers(0, 2**32 - 1), random=st.randoms())
def test_every_way_gives_the_same(length: int, start: int, seed: int, random: Random) -> None:
    data = random.randbytes(start + length)
    at = ffi.from_buffer("char[]", data) + start
    assert lib.cfs_crc32c(seed, at, length) == lib.cfs_crc32c_tables(seed, at, length)


@given(first=st.binary(max_size=3000), second=st.binary(max_size=3000))
def test_goes_on_from_a_seed(first: bytes, second: bytes) -> None:
    assert crc32c(second, crc32c(first)) == crc32c(first + second)


def test_takes_any_buffer() -> None:
    data = bytes(range(200))
    for buffer in (bytearray(data), memoryview(data), memoryview(b"x" + data)[1:]):
        assert crc32c(buffer) == crc32c(data)
    with pytest.raises(TypeError):
        crc32c("text")  # type: ignore[arg-type]
