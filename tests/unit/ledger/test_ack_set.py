"""Ack sets: what counts, what does not, and every short history against a plain model."""

from __future__ import annotations

from itertools import product

import pytest

from magnetar.ids import BookieId
from tests.unit.ledger.ack_set import AckSet

A, B, C, D, E = (BookieId(name) for name in "abcde")


def test_an_add_is_complete_with_the_ack_quorum() -> None:
    acks = AckSet((A, B, C), 2)
    assert not acks.on_ack(A)
    assert acks.on_ack(C)
    assert acks.acked == (A, C)
    assert acks.awaited == (B,)


def test_a_repeated_ack_counts_once() -> None:
    acks = AckSet((A, B, C), 2)
    acks.on_ack(A)
    assert not acks.on_ack(A)


def test_the_ack_of_a_stranger_does_not_count() -> None:
    acks = AckSet((A, B, C), 1)
    assert not acks.on_ack(D)
    assert acks.acked == ()


def test_the_ack_of_a_replaced_bookie_is_withdrawn() -> None:
    acks = AckSet((A, B, C), 2)
    acks.on_ack(A)
    assert acks.on_ack(B)
    assert not acks.on_replaced(A, D)
    assert acks.acked == (B,)
    assert acks.awaited == (D, C)


def test_a_late_ack_of_a_replaced_bookie_does_not_count_for_the_one_in_its_place() -> None:
    acks = AckSet((A, B, C), 2)
    acks.on_ack(B)
    acks.on_replaced(A, D)
    assert not acks.on_ack(A)
    assert acks.on_ack(D)


def test_a_late_failure_of_a_replaced_bookie_does_not_count_for_the_one_in_its_place() -> None:
    acks = AckSet((A, B), 2)
    acks.on_replaced(A, D)
    assert not acks.on_failure(A)
    assert acks.failed == ()


def test_replacing_a_bookie_that_does_not_hold_the_entry_changes_nothing() -> None:
    acks = AckSet((A, B), 2)
    acks.on_ack(A)
    acks.on_ack(B)
    assert acks.on_replaced(C, D)
    assert acks.acked == (A, B)


def test_entries_that_share_a_write_set_are_replaced_one_by_one() -> None:
    shared = (A, B)
    first, second = AckSet(shared, 1), AckSet(shared, 1)
    first.on_replaced(A, C)
    assert second.awaited == (A, B)


def test_the_quorum_is_broken_when_the_rest_is_too_small() -> None:
    acks = AckSet((A, B, C), 2)
    assert not acks.on_failure(A)
    assert acks.on_failure(B)
    assert acks.failed == (A, B)


def test_a_repeated_failure_counts_once() -> None:
    acks = AckSet((A, B, C), 2)
    acks.on_failure(A)
    assert not acks.on_failure(A)


def test_a_replacement_mends_a_broken_quorum() -> None:
    acks = AckSet((A, B, C), 3)
    assert acks.on_failure(B)
    acks.on_replaced(B, D)
    assert not acks.is_broken
    assert acks.failed == ()


def test_an_ack_after_a_failure_counts() -> None:
    acks = AckSet((A, B), 2)
    assert acks.on_failure(A)
    acks.on_ack(A)
    assert not acks.is_broken
    assert acks.on_ack(B)


def test_a_failure_after_an_ack_withdraws_it() -> None:
    acks = AckSet((A, B), 1)
    assert acks.on_ack(A)
    acks.on_failure(A)
    assert not acks.is_complete


def test_a_bookie_cannot_stand_in_a_write_set_twice() -> None:
    with pytest.raises(AssertionError, match="b is in the write set already"):
        AckSet((A, B), 1).on_replaced(A, B)


@pytest.mark.parametrize("ack_quorum", [1, 2, 3])
def test_every_history_of_five_events_agrees_with_a_model_that_keeps_the_last_word_of_each_bookie(
    ack_quorum: int,
) -> None:
    events = [*product(("ack", "fail"), (A, B, C, D)), ("replace", A), ("replace", B)]
    for history in product(events, repeat=5):
        spares = [E, D]
        acks = AckSet((A, B, C), ack_quorum)
        last_word: dict[BookieId, str | None] = {A: None, B: None, C: None}
        for what, bookie in history:
            if what == "replace" and bookie in last_word:
                new = spares.pop()
                acks.on_replaced(bookie, new)
                del last_word[bookie]
                last_word[new] = None
            elif what != "replace":
                (acks.on_ack if what == "ack" else acks.on_failure)(bookie)
                last_word.update({bookie: what} if bookie in last_word else {})
        words = list(last_word.values())
        assert acks.is_complete == (words.count("ack") >= ack_quorum)
        assert acks.is_broken == (len(words) - words.count("fail") < ack_quorum)
        assert set(acks.acked) == {bookie for bookie, word in last_word.items() if word == "ack"}
