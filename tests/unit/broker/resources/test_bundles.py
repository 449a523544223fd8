from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.resources.bundles import HASHES, Bundles
from magnetar.errors import InvalidPolicyError, MalformedMetadataError
from magnetar.names import TopicName
from tests.rows import every_row


@given(st.integers(1, 500), st.integers(0, HASHES - 1))
def test_every_hash_is_in_exactly_one_bundle_and_lookup_finds_it(count: int, topic_hash: int) -> None:
    bundles = Bundles.equal(count)
    assert len(bundles) == count == len(bundles.all())
    holding = [bundle for bundle in bundles.all() if topic_hash in bundle]
    assert holding == [bundles.of_hash(topic_hash)]


@pytest.mark.parametrize("topic_hash", [0, 1, 0x3FFFFFFF, 0x40000000, 0xFFFFFFFE, 0xFFFFFFFF])
def test_hashes_at_boundaries_have_a_bundle(topic_hash: int) -> None:
    assert topic_hash in Bundles.equal(4).of_hash(topic_hash)


def test_bundle_of_a_topic_is_written_as_apache_writes_it() -> None:
    assert str(Bundles.equal(4).of(TopicName.parse("a/b/c"))) == "0x00000000_0x40000000"  # CRC-32 is 758237079.
    assert str(Bundles.equal(4).of(TopicName.parse("t"))) == "0x80000000_0xc0000000"


@given(st.integers(1, 50))
def test_json_comes_back(count: int) -> None:
    assert Bundles.from_json(Bundles.equal(count).to_json()) == Bundles.equal(count)


@every_row(
    "value",
    [
        *(
            None,
            {},
            {"boundaries": None},
            {"boundaries": []},
            {"boundaries": ["0x00000000"]},
            {"boundaries": ["x", "y"]},
        ),
        {"boundaries": ["0x00000001", "0xffffffff"]},
        {"boundaries": ["0x00000000", "0xfffffffe"]},
        {"boundaries": ["0x00000000", "0x80000000", "0x40000000", "0xffffffff"]},
        {"boundaries": ["0x00000000", "0x80000000", "0x80000000", "0xffffffff"]},
    ],
)
def test_boundaries_that_do_not_cover_everything_once_are_refused(value: Any) -> None:
    with pytest.raises(MalformedMetadataError):
        Bundles.from_json(value)


def test_split_divides_one_bundle_and_leaves_the_others() -> None:
    bundles = Bundles.equal(2)
    after = bundles.split(bundles.all()[1], 0xC0000000)
    assert [str(bundle) for bundle in after.all()] == [
        "0x00000000_0x80000000",
        "0x80000000_0xc0000000",
        "0xc0000000_0xffffffff",
    ]
    with pytest.raises(InvalidPolicyError, match="inside"):
        bundles.split(bundles.all()[1], 0x80000000)
    with pytest.raises(InvalidPolicyError, match="not a bundle"):
        bundles.split(after.all()[1], 0x90000000)


def test_merge_makes_one_bundle_of_two_and_leaves_the_others() -> None:
    bundles = Bundles.equal(4)
    after = bundles.merge(bundles.all()[1])
    assert [str(bundle) for bundle in after.all()] == [
        "0x00000000_0x40000000",
        "0x40000000_0xc0000000",
        "0xc0000000_0xffffffff",
    ]
    assert after.split(after.all()[1], 0x80000000) == bundles
    with pytest.raises(InvalidPolicyError, match="another one follows"):
        bundles.merge(bundles.all()[3])
    with pytest.raises(InvalidPolicyError, match="not a bundle"):
        bundles.merge(after.all()[1])


@pytest.mark.parametrize("count", [0, -1, 10**9])
def test_number_of_bundles_has_bounds(count: int) -> None:
    with pytest.raises(InvalidPolicyError):
        Bundles.equal(count)
