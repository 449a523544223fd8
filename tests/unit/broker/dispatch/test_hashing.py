from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.dispatch.next_consumer import key_hash, murmur3_32


# Values of Pulsar's Murmur3_32Hash, as its own tests and other implementations of the algorithm have them.
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"a", 0x3C2569B2),
        (b"abc", 0xB3DD93FA & 0x7FFFFFFF),
        (b"hello", 0x248BFA47),
        (b"hello, world", 0x149BBB7F),
        (b"The quick brown fox jumps over the lazy dog", 0x2E4FF723),
    ],
)
def test_the_hash_is_murmur3_without_its_sign(data: bytes, expected: int) -> None:
    assert murmur3_32(data) == expected


@given(st.binary(max_size=40), st.sampled_from([0, 1]))
def test_key_hashes_are_within_their_range_and_never_zero(key: bytes, first: int) -> None:
    assert 1 <= key_hash(key, first) <= 65_535
