"""A seed of topics repeats to the byte, in this process and in any other."""

from __future__ import annotations

import os
import subprocess
import sys

from magnetar.sim.topics.options import FAULTS, draw
from magnetar.sim.topics.scenario import TOPICS

SHORT = {"duration_s": 0.4, "topics": 1}


def traced(seed: int) -> tuple[list[str], int]:
    lines: list[str] = []
    report = TOPICS.run(seed, SHORT, trace=lines.append)
    return lines, report.digest


def test_a_seed_of_topics_repeats_to_the_byte() -> None:
    first = traced(5)
    assert first == traced(5)
    assert len(first[0]) > 1_000
    assert TOPICS.run(5, SHORT).digest == first[1], "tracing changes nothing"


SCRIPT = """
from magnetar.sim.topics.options import FAULTS
from magnetar.sim.topics.scenario import TOPICS
import zlib
crc = 0
def keep(line):
    global crc
    crc = zlib.crc32(line.encode(), crc)
for seed in (11,):
    report = TOPICS.run(seed, {"duration_s": 0.5, "faults": tuple(FAULTS)}, trace=keep)
    print(seed, report.digest, report.events, report.virtual_s, crc, sorted(report.counters.items()))
"""


def test_a_seed_of_topics_repeats_under_another_hash_seed() -> None:
    assert _output("1") == _output("2")


def _output(hash_seed: str) -> bytes:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    ran = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, timeout=110, check=False)
    assert ran.returncode == 0, ran.stderr.decode()
    return ran.stdout


def test_options_of_topics_are_drawn_from_the_seed_alone() -> None:
    assert draw(7) == draw(7) != draw(8)


def test_replaced_options_of_topics_do_not_change_the_others() -> None:
    replaced = draw(7, {"duration_s": 0.5, "brokers": 5, "burst_max": 9})
    assert (replaced.base.duration_s, replaced.brokers, replaced.burst_max) == (0.5, 5, 9)
    assert (replaced.base.ensemble, replaced.topic) == (draw(7).base.ensemble, draw(7).topic)


def test_faults_of_topics_can_be_taken_away() -> None:
    drawn = draw(7, {"faults": tuple(FAULTS)}, without=("broker", "rot"))
    assert drawn.base.faults == tuple(name for name in FAULTS if name not in ("broker", "rot"))
