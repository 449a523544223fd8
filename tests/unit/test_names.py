"""Names of topics, compared with what Apache's TopicName makes of the same texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.errors import InvalidNameError
from magnetar.names import (
    TOPIC_NAME_CHARACTERS_MAX,
    Domain,
    NamespaceName,
    TopicName,
    check_entity,
    decode_name,
    encode_name,
)
from tests.rows import every_row

# Text, full name, partition, managed ledger, without the partition, CRC-32: printed by Apache's classes.
APACHE = [
    ("t", "persistent://public/default/t", -1, "public/default/persistent/t", None, 2185025833),
    ("a/b/c", "persistent://a/b/c", -1, "a/b/persistent/c", None, 758237079),
    ("non-persistent://a/b/c", "non-persistent://a/b/c", -1, "a/b/non-persistent/c", None, 1661980392),
    (
        *("persistent://a/b/c-partition-3", "persistent://a/b/c-partition-3", 3, "a/b/persistent/c-partition-3"),
        *("persistent://a/b/c", 185655860),
    ),
    ("a/b/c-partition-03", "persistent://a/b/c-partition-03", -1, "a/b/persistent/c-partition-03", None, None),
    ("a/b/c-partition--1", "persistent://a/b/c-partition--1", -1, "a/b/persistent/c-partition--1", None, None),
    ("a/b/c-partition-+1", "persistent://a/b/c-partition-+1", -1, "a/b/persistent/c-partition-%2B1", None, None),
    (
        *("c-partition-2147483647", "persistent://public/default/c-partition-2147483647", 2147483647),
        *("public/default/persistent/c-partition-2147483647", "persistent://public/default/c", 379569278),
    ),
    (
        *("c-partition-2147483648", "persistent://public/default/c-partition-2147483648", -1),
        *("public/default/persistent/c-partition-2147483648", None, 2250299887),
    ),
    (
        *("a/b/x-partition-1-partition-2", "persistent://a/b/x-partition-1-partition-2", 2),
        *("a/b/persistent/x-partition-1-partition-2", "persistent://a/b/x-partition-1", None),
    ),
    (
        *("a b~*é(+)%", "persistent://public/default/a b~*é(+)%", -1),
        *("public/default/persistent/a+b%7E*%C3%A9%28%2B%29%25", None, 2707741037),
    ),
    ("a/b/日本", "persistent://a/b/日本", -1, "a/b/persistent/%E6%97%A5%E6%9C%AC", None, 3003653745),
    ("persistent://a/b/c%20d", "persistent://a/b/c%20d", -1, "a/b/persistent/c%2520d", None, 858464323),
    ("a=:.-_/b/c", "persistent://a=:.-_/b/c", -1, "a=:.-_/b/persistent/c", None, 321592693),
    ("a/b/x-partition-", "persistent://a/b/x-partition-", -1, "a/b/persistent/x-partition-", None, None),
    ("a/b/x-partition-5x", "persistent://a/b/x-partition-5x", -1, "a/b/persistent/x-partition-5x", None, None),
]


@every_row(("text", "full", "partition", "log_name", "base", "crc"), APACHE, ids=[row[0] for row in APACHE])
def test_name_has_the_forms_that_apache_gives_it(
    text: str, full: str, partition: int, log_name: str, base: str | None, crc: int | None
) -> None:
    topic = TopicName.parse(text)
    assert str(topic) == full
    assert topic.partition == partition
    assert topic.log_name == log_name
    assert topic.log_path == f"/managed-ledgers/{log_name}"
    assert str(topic.without_partition()) == (base or full)
    assert crc is None or topic.bundle_hash == crc
    assert TopicName.parse(full) == topic
    assert decode_name(topic.encoded) == topic.local


@every_row(
    "text",
    [
        *("", "   ", "a/b", "a//c", "/a/b", "a/b/c/d", "a!/b/c", "é/b/c", "a/b/.", "a/b/..", "./b/c", "a/../c"),
        *("persistent://a/b/", "persistent://a/b/ ", "persistent://a/b", "persistent://a/b/c/d", "persistent:///b/c"),
        *("foo://a/b/c", "persistent://", "://a/b/c", "persistent://a/b/c://d", "a/b/\ud800"),
    ],
)
def test_text_that_is_not_a_name_is_refused_with_a_reason(text: str) -> None:
    with pytest.raises(InvalidNameError, match=r"\S"):
        TopicName.parse(text)


def test_name_without_end_is_refused() -> None:
    with pytest.raises(InvalidNameError, match="characters"):
        TopicName.parse("x" * (TOPIC_NAME_CHARACTERS_MAX + 1))


def test_cluster_in_a_name_is_explained() -> None:
    with pytest.raises(InvalidNameError, match="cluster"):
        TopicName.parse("persistent://tenant/cluster/ns/topic")


@pytest.mark.parametrize("local", ["-partition-3", " -partition-3", ".-partition-0", "..-partition-0"])
def test_suffix_without_a_topic_in_front_is_a_plain_name(local: str) -> None:
    topic = TopicName.parse(f"a/b/{local}")
    assert topic.partition == -1
    assert topic.without_partition() is topic


def test_partition_is_a_name_of_its_own() -> None:
    topic = TopicName.parse("a/b/c")
    part = topic.with_partition(2)
    assert str(part) == "persistent://a/b/c-partition-2"
    assert part == TopicName.parse(str(part))
    assert part.is_partition
    assert part.without_partition() == topic
    assert part.schema_name == topic.schema_name == "a/b/c"


@pytest.mark.parametrize(
    ("text", "is_system"),
    [
        ("a/b/__change_events", True),
        ("a/b/__change_events-partition-1", True),
        ("a/b/__transaction_buffer_snapshot", True),
        ("a/b/x__transaction_pending_ack", True),
        ("pulsar/system/transaction_coordinator_assign-partition-0", True),
        ("a/b/transaction_coordinator_assign", False),
        ("a/b/t", False),
    ],
)
def test_topics_of_brokers_are_known_by_their_names(text: str, is_system: bool) -> None:
    assert TopicName.parse(text).is_system is is_system
    assert TopicName.parse(text).is_change_events is ("__change_events" in text)


def test_namespace_makes_names_of_its_topics() -> None:
    namespace = NamespaceName.parse("a/b")
    assert str(namespace.topic("t", Domain.NON_PERSISTENT)) == "non-persistent://a/b/t"
    assert not namespace.topic("t", Domain.NON_PERSISTENT).is_persistent
    assert namespace.topic("t").namespace == namespace


@pytest.mark.parametrize("text", ["", "a", "a/b/c", "a/", "/b", "a/b c", "a/é", "a/."])
def test_text_that_is_not_a_namespace_is_refused(text: str) -> None:
    with pytest.raises(InvalidNameError, match=r"\S"):
        NamespaceName.parse(text)


def test_entity_with_a_line_feed_is_refused() -> None:
    with pytest.raises(InvalidNameError, match="cluster"):
        check_entity("a\n", "cluster")


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_encoded_name_is_one_path_segment_and_comes_back(name: str) -> None:
    encoded = encode_name(name)
    assert "/" not in encoded
    assert encoded.isascii()
    assert decode_name(encoded) == name
