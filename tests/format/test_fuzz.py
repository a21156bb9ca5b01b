"""Every parser on inputs mutated from sound ones; `python -m tests.torture.fuzz` goes on with it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commitfs.format.extent import Extent, decode_extent, encode_extent
from tests.support.fuzz_targets import TARGETS, Broken, Mutator, seeds, value_target


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_are_accepted(name: str) -> None:
    taken = [TARGETS[name](data) for data in seeds(name)]
    assert any(taken)


@pytest.mark.parametrize("name", TARGETS)
@settings(deadline=None)
@given(data=st.binary(max_size=600))
def test_any_bytes_are_refused_or_come_back(name: str, data: bytes) -> None:
    TARGETS[name](data)


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_what_is_nearly_sound_too(name: str, seed: int) -> None:
    mutator = Mutator(seeds(name), seed)
    for _ in range(30):
        data = mutator.next()
        if TARGETS[name](data):
            mutator.accepted(data)


def test_an_encoding_that_loses_something_is_found() -> None:
    def encode(extent: Extent) -> bytes:
        return encode_extent(extent._replace(skip=0))

    target = value_target(decode_extent, encode)
    (data,) = [data for data in seeds("extent") if decode_extent(data).skip == 5]
    with pytest.raises(Broken):
        target(data)
