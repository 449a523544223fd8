"""Each invariant of topics says so when it is broken, and says nothing when it is not."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest

from magnetar.client import Message, MessageId
from magnetar.ids import LedgerId
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerMetadata, Versioned
from magnetar.sim.topics.invariants import ALL
from magnetar.sim.topics.observe import WatchedPublisher, WatchedTopic
from magnetar.sim.topics.options import draw
from magnetar.sim.topics.watch import NOT_SAID, Audited, Load, Sends, Stay, TopicChange, TopicWatch
from magnetar.sim.world import World
from magnetar.topic.chain import LedgerSpan
from magnetar.topic.log.managed_ledger import ManagedLedger
from magnetar.topic.position import Position

TOPIC = "persistent://public/default/topic-0"


@pytest.fixture
def watch() -> Iterator[TopicWatch]:
    with World("invariants") as world:
        watch = TopicWatch(world, draw(1), ALL)
        watch.told.audits[TOPIC] = []
        watch.told.add_producer(TOPIC, "p").sent = 10
        watch.told.add_subscription(TOPIC, "exclusive")
        yield watch


def sends_of(watch: TopicWatch) -> Sends:
    return watch.told.sends[TOPIC, "p"]


def put(watch: TopicWatch, entry_id: int, number: int, ledger_id: int = 1) -> None:
    payload = sends_of(watch).payload(number)
    watch.told.audits[TOPIC].append(Audited(MessageId(ledger_id, entry_id), "p", number, payload))


def audited(watch: TopicWatch) -> list[str]:
    watch.tell("at_audit")
    return caught(watch)


def caught(watch: TopicWatch) -> list[str]:
    return sorted({violation.invariant for violation in watch.violations})


def info(*ledger_ids: int) -> ManagedLedger:
    return ManagedLedger(tuple(LedgerSpan(ledger_id, 1, 1) for ledger_id in ledger_ids))


def closed(watch: TopicWatch, *ledger_ids: int) -> None:
    for ledger_id in ledger_ids:
        metadata = cast("LedgerMetadata", SimpleNamespace(is_closed=True, last_entry_id=7))
        watch.ledgers[LedgerId(ledger_id)] = Versioned(metadata, 0)


def test_a_log_with_everything_once_and_in_order_is_clean(watch: TopicWatch) -> None:
    for number in range(3):
        put(watch, number, number)
        sends_of(watch).stored[number] = MessageId(1, number)
    assert audited(watch) == []


def test_message_with_a_receipt_that_is_not_there_is_lost(watch: TopicWatch) -> None:
    sends_of(watch).stored[0] = MessageId(1, 0)
    assert audited(watch) == ["C1"]


def test_repeat_that_was_answered_as_stored_and_is_not_breaks_deduplication(watch: TopicWatch) -> None:
    sends_of(watch).stored[0] = NOT_SAID
    assert audited(watch) == ["C1", "T4"]


def test_message_that_is_there_twice_is_a_duplicate(watch: TopicWatch) -> None:
    put(watch, 0, 0)
    put(watch, 1, 0)
    assert audited(watch) == ["C2", "T4"]


def test_message_whose_send_failed_for_good_must_not_be_there(watch: TopicWatch) -> None:
    put(watch, 0, 0)
    sends_of(watch).failed[0] = "refused"
    assert audited(watch) == ["C3", "T4"]


def test_message_that_nobody_sent_must_not_be_there(watch: TopicWatch) -> None:
    put(watch, 0, 77)
    assert audited(watch) == ["C3"]


def test_messages_of_one_producer_that_overtake_are_out_of_order(watch: TopicWatch) -> None:
    put(watch, 0, 1)
    put(watch, 1, 0)
    assert audited(watch) == ["C6"]


def test_message_id_that_names_another_message_later_is_told(watch: TopicWatch) -> None:
    put(watch, 0, 0)
    progress = watch.told.progress[TOPIC, "exclusive"]
    watch.tell("on_received", progress, "c", Message(MessageId(1, 0), TOPIC, b"something else"))
    assert audited(watch) == ["C4"]


def test_consumer_that_is_sent_back_or_left_something_out_is_told(watch: TopicWatch) -> None:
    for number in range(4):
        put(watch, number, number)
    stay = Stay("c", "exclusive", TOPIC, is_ordered=True)
    watch.told.stays.append(stay)
    stay.entries = [(0.0, (1, 0)), (0.1, (1, 1))]
    assert audited(watch) == []
    stay.entries = [(0.0, (1, 0)), (0.1, (1, 2))]
    assert audited(watch) == ["C5"]
    watch.violations.clear()
    watch.told.progress[TOPIC, "exclusive"].asked[MessageId(1, 1)] = 0.05
    assert audited(watch) == [], "what was acknowledged need not come"
    stay.entries = [(0.0, (1, 0)), (0.1, (1, 0))]
    assert audited(watch) == ["C5"]
    watch.violations.clear()
    stay.is_ordered = False
    assert audited(watch) == []


def test_one_position_for_two_messages_is_told_at_once(watch: TopicWatch) -> None:
    watch.chains[TOPIC] = info(1)
    watch.tell("on_receipt", sends_of(watch), 0, MessageId(1, 0))
    assert caught(watch) == []
    watch.tell("on_receipt", sends_of(watch), 1, MessageId(1, 0))
    assert caught(watch) == ["T2"]


def test_receipt_after_the_end_of_a_closed_ledger_is_told_at_once(watch: TopicWatch) -> None:
    watch.chains[TOPIC] = info(1)
    closed(watch, 1)
    watch.tell("on_receipt", sends_of(watch), 0, MessageId(1, 7))
    assert caught(watch) == []
    watch.tell("on_receipt", sends_of(watch), 1, MessageId(1, 8))
    assert caught(watch) == ["T2"]


def test_one_message_at_two_positions_is_told_at_once(watch: TopicWatch) -> None:
    watch.chains[TOPIC] = info(1)
    sends_of(watch).stored[0] = MessageId(1, 0)
    watch.tell("on_receipt", sends_of(watch), 0, MessageId(1, 5))
    assert caught(watch) == ["T4"]


def test_repeat_that_is_answered_while_the_first_is_being_stored_is_told_at_once(watch: TopicWatch) -> None:
    publisher = cast("WatchedPublisher", SimpleNamespace(undecided={("p", 3): 1}))
    watch.tell("on_duplicate", publisher, "p", 2)
    assert caught(watch) == []
    watch.tell("on_duplicate", publisher, "p", 3)
    assert caught(watch) == ["T4"]


def test_receipt_for_a_ledger_that_is_not_in_the_chain_is_told_at_once(watch: TopicWatch) -> None:
    watch.chains[TOPIC] = info(1)
    watch.tell("on_receipt", sends_of(watch), 0, MessageId(9, 0))
    assert caught(watch) == ["T1"]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ((1, 2), (1, 2, 3), []),
        ((1, 2), (1, 3), []),
        ((1, 5), (1, 4, 5), ["T1"]),
        ((1, 2), (1, 2, 9, 10), ["T1"]),
        ((1, 2), (2,), ["T1"]),
    ],
)
def test_chain_only_grows_and_only_its_last_ledger_is_open(
    before: tuple[int, ...], after: tuple[int, ...], expected: list[str], watch: TopicWatch
) -> None:
    closed(watch, 1, 2, 3, 4)
    watch.chains[TOPIC] = info(*before)
    watch.tell("on_receipt", sends_of(watch), 0, MessageId(1, 0))
    watch.tell("on_topic_change", TopicChange(TOPIC, info(*before), info(*after), "broker-0"))
    assert caught(watch) == expected


def test_load_that_does_not_know_a_confirmed_acknowledgement_is_told_at_once(watch: TopicWatch) -> None:
    known = [Position(1, 0)]
    cursor = SimpleNamespace(is_acknowledged=known.__contains__, mark_delete=Position(1, 0))
    chain = SimpleNamespace(entries_between=lambda after, up_to: up_to[1] - after[1])
    topic = cast(
        "WatchedTopic",
        SimpleNamespace(
            name=TOPIC, cursors={"exclusive": cursor}, log=SimpleNamespace(chain=chain, last_confirmed=Position(1, 5))
        ),
    )
    watch.tell("on_loaded", Load(topic, "broker-0", {"exclusive": [(1, 0)]}, {"exclusive": (1, 0)}))
    assert caught(watch) == []
    watch.tell("on_loaded", Load(topic, "broker-0", {"exclusive": [(1, 0), (1, 3)]}, {}))
    assert caught(watch) == ["T5"]
    watch.violations.clear()
    watch.tell("on_loaded", Load(topic, "broker-0", {"exclusive": []}, {"exclusive": (1, 2)}))
    assert caught(watch) == ["T5"], "the mark-delete position went back"


@pytest.mark.parametrize(
    ("found", "is_clean"),
    [
        ([("a", b"1"), ("b", b"2")], True),
        ([("b", b"2"), ("a", b"1")], False),
        ([("a", b"1")], False),
        ([("a", b"1"), ("b", b"2"), (None, b"")], False),
        ([("a", b"0"), ("b", b"2")], False),
    ],
)
def test_compacted_view_has_the_last_value_of_every_key_in_order_and_nothing_else(
    watch: TopicWatch, found: list[tuple[str | None, bytes]], is_clean: bool
) -> None:
    watch.tell("on_compacted_view", TOPIC, {"a": b"1", "b": b"2"}, found)
    assert caught(watch) == ([] if is_clean else ["C8"])
