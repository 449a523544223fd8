"""The verdict of the kills under clients of Kafka notices what is lost, repeated or out of order."""

from __future__ import annotations

from workloads.kafka_load import LogTally, tally


def test_a_log_with_every_acknowledged_message_once_and_in_order_passes() -> None:
    found = tally([0, 1, 2, 3], acknowledged=[0, 1, 2])
    assert found == LogTally(messages=4, lost=0, duplicated=0, out_of_order=0)
    assert found.passed


def test_a_lost_message_a_repeated_one_and_a_wrong_order_each_fail() -> None:
    assert tally([0, 2], acknowledged=[0, 1, 2]).lost == 1
    assert tally([0, 1, 1, 1], acknowledged=[0, 1]).duplicated == 2
    assert tally([0, 2, 1], acknowledged=[0, 1, 2]).out_of_order == 1
    assert not any(tally(log, [0, 1]).passed for log in ([0], [0, 0, 1], [1, 0]))
