"""A seed is a whole world: it repeats to the byte, in this process and in any other."""

from __future__ import annotations

import os
import subprocess
import sys

from magnetar.sim.ledgers.options import FAULTS, draw
from magnetar.sim.ledgers.scenario import LEDGERS


def traced(seed: int, **options: object) -> tuple[list[str], int]:
    lines: list[str] = []
    report = LEDGERS.run(seed, {"duration_s": 1.0, **options}, trace=lines.append)
    return lines, report.digest


def test_a_seed_repeats_to_the_byte() -> None:
    first, second = traced(5), traced(5)
    assert first == second
    assert len(first[0]) > 1_000


def test_seeds_differ() -> None:
    assert traced(5)[1] != traced(6)[1]


def test_tracing_does_not_change_what_happens() -> None:
    assert LEDGERS.run(5, {"duration_s": 1.0}).digest == traced(5)[1]


SCRIPT = """
from magnetar.sim.ledgers.options import FAULTS
from magnetar.sim.ledgers.scenario import LEDGERS
import zlib
crc = 0
def keep(line):
    global crc
    crc = zlib.crc32(line.encode(), crc)
for seed in (11, 12):
    report = LEDGERS.run(seed, {"duration_s": 1.0, "faults": tuple(FAULTS)}, trace=keep)
    print(seed, report.digest, report.events, report.virtual_s, crc, sorted(report.counters.items()))
"""


def test_a_seed_repeats_under_another_hash_seed() -> None:
    assert _output("1") == _output("2")


def _output(hash_seed: str) -> bytes:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    ran = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, timeout=110, check=False)
    assert ran.returncode == 0, ran.stderr.decode()
    return ran.stdout


def test_options_are_drawn_from_the_seed_alone() -> None:
    assert draw(7) == draw(7) != draw(8)


def test_replaced_options_do_not_change_the_others() -> None:
    replaced = draw(7, {"duration_s": 0.5})
    assert replaced.duration_s == 0.5
    assert (replaced.ensemble, replaced.bookie, replaced.ledger) == (draw(7).ensemble, draw(7).bookie, draw(7).ledger)


def test_faults_can_be_taken_away() -> None:
    assert draw(7, {"faults": tuple(FAULTS)}, without=("part", "rot")).faults == tuple(
        name for name in FAULTS if name not in ("part", "rot")
    )
