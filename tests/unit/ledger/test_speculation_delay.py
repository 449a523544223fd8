from __future__ import annotations

from magnetar.ledger.reading.reads import SpeculationDelay


def speculation() -> SpeculationDelay:
    return SpeculationDelay(percentile=90, min_s=0.01, max_s=2.0)


def test_before_enough_reads_were_seen_the_delay_is_the_longest() -> None:
    delay = speculation()
    for _ in range(15):
        delay.on_answer(0.1)
    assert delay.delay_s == 2.0


def test_delay_is_the_percentile_of_the_last_reads() -> None:
    delay = speculation()
    for number in range(96):
        delay.on_answer(1.0 if number % 8 == 0 else 0.1)
    assert delay.delay_s == 1.0
    for _ in range(256):
        delay.on_answer(0.1)
    assert delay.delay_s == 0.1


def test_delay_stays_within_its_bounds() -> None:
    delay = speculation()
    for _ in range(32):
        delay.on_answer(0.0001)
    assert delay.delay_s == 0.01
    for _ in range(256):
        delay.on_answer(60.0)
    assert delay.delay_s == 2.0
