"""What the Spark benchmark and the kill tests compute without Spark: values, mixed rows, and the verdict on a topic."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from bench.spark_values import value_of
from interop.spark.kill_hook import KillPoint, arm
from interop.spark.messages import compare
from interop.spark.mixing import mix_keys
from soak.spark_kills import VICTIMS, victims_of

A, B = [("a", b"1"), ("b", b"2"), ("a", b"3")], [("c", b"4"), ("c", b"5")]


def test_the_same_messages_in_another_order_of_keys_pass() -> None:
    assert compare([A, B], [[("b", b"2"), ("a", b"1"), ("a", b"3")], B]).passed


def test_keys_may_be_in_other_partitions() -> None:
    assert compare([A, B], [B, A]).passed


def test_a_lost_and_a_doubled_message_are_counted_apart() -> None:
    verdict = compare([A, B], [A[:2], [*B, ("c", b"4")]])
    assert (verdict.lost, verdict.doubled, verdict.strange, verdict.out_of_order) == (1, 1, 0, 0)
    assert not verdict.passed


def test_a_message_that_was_never_sent_is_strange() -> None:
    verdict = compare([A], [[*A, ("a", b"9")]])
    assert (verdict.strange, verdict.doubled) == (1, 0)


def test_a_message_that_changed_its_key_is_lost_and_strange() -> None:
    verdict = compare([A], [[("b", b"1"), *A[1:]]])
    assert (verdict.lost, verdict.strange) == (1, 1)


def test_messages_of_a_key_in_another_order_do_not_pass() -> None:
    verdict = compare([A], [[("a", b"3"), ("b", b"2"), ("a", b"1")]])
    assert (verdict.out_of_order, verdict.lost, verdict.doubled) == (1, 0, 0)


def test_a_key_in_two_partitions_has_no_order() -> None:
    assert compare([A], [[A[0], A[1]], [A[2]]]).out_of_order == 1


def test_two_empty_topics_do_not_pass() -> None:
    assert not compare([[]], [[]]).passed


def test_mixed_rows_keep_the_order_of_each_key_and_lose_nothing() -> None:
    rows = [{"key": b"%d" % (number % 7), "value": b"%d" % number} for number in range(500)]
    mixed = [next(iter(mix_keys(iter([pa.RecordBatch.from_pylist(rows)])))).to_pylist() for _ in range(3)]
    for found in mixed:
        assert sorted(found, key=lambda row: int(row["value"])) == rows
        assert [row for row in found if row["key"] == b"3"] == [row for row in rows if row["key"] == b"3"]
    assert any(found != rows for found in mixed)


def test_an_empty_batch_stays_empty() -> None:
    empty = pa.RecordBatch.from_pydict({"key": pa.array([], pa.binary()), "value": pa.array([], pa.binary())})
    assert next(iter(mix_keys(iter([empty])))).num_rows == 0


def test_a_value_has_its_number_and_the_size_that_was_asked_for() -> None:
    assert value_of(17, 100).startswith(b"0000000000000017")
    assert len(value_of(17, 100)) == 100
    assert value_of(1, 1024)[16:] == value_of(2, 1024)[16:]
    with pytest.raises(ValueError, match="at least 16 bytes"):
        value_of(1, 15)


def test_every_kind_of_victim_has_its_turn() -> None:
    chosen = victims_of(30, random.Random(1))
    assert {kind: chosen.count(kind) // 7 for kind in VICTIMS} == dict.fromkeys(VICTIMS, 1)


def test_a_kill_point_is_passed_in_other_epochs_and_after_it_has_happened(tmp_path) -> None:
    reached, orders = tmp_path / "reached", tmp_path / "orders"
    point = KillPoint(orders)
    point("mid-append", 3)
    arm(orders, "mid-append", 3, reached)
    point("mid-append", 2)
    point("published", 3)
    assert not reached.exists()
    reached.touch()
    point("mid-append", 3)
