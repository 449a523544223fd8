"""The rows of the bookie's benchmark, and what a row puts into the JSON."""

from __future__ import annotations

from typing import Any, cast

import pytest

from bench.bookie import GROUPS, NAMES, AddRow, ReadRow, added_by_our_client, peak_row, read_by_our_client
from bench.bookie_contest import ONE, Contestant, Sample, parse_machine_cpu
from bench.report import Row, Side
from interop.bookies import BookieCluster
from magnetar.config.storage import StorageConfig


def test_every_row_has_a_name_of_its_own() -> None:
    assert len(set(NAMES)) == len(NAMES)


def test_goals_and_floors_of_the_adds() -> None:
    goals = {row.name: (row.goal, row.floor) for group in GROUPS for row in group.adds}
    assert goals == {
        "add-1k-x1": (4, None), "add-1k-x100": (2, None), "add-1k-x2000": (1.2, 0.8), "add-64k-x100": (1.5, None),
        "add-1k-x1-3": (3, None), "add-1k-x100-3": (1.5, None), "add-1k-x2000-3": (1.1, 0.8),
        "add-64k-x100-3": (1.5, None),
    }  # fmt: skip


@pytest.mark.parametrize(("peak_mib", "is_kept"), [(463.0, True), (463.1, False)])
def test_a_bookie_may_take_its_caches_and_150_mb_and_not_a_byte_more(peak_mib: float, is_kept: bool) -> None:
    storage = StorageConfig(write_cache_bytes_max=128 * 2**20, read_cache_bytes_max=64 * 2**20)
    row = peak_row("peak-1k", peak_mib, storage)
    assert (row.name, row.floor, row.goal) == ("bookie/peak-1k", 1.0, None)
    assert row.theirs.value == 320 + 150e6 / 2**20
    assert (row.ratio >= 1.0) is is_kept


def test_the_memory_of_every_group_has_a_row() -> None:
    assert [group.peak for group in GROUPS] == ["peak-1k", "peak-64k", "peak-1k-3", "peak-64k-3"]
    assert all(group.peak in group.names and group.peak in NAMES for group in GROUPS)


class RecordedLoad:
    """A generator that makes no load, and is twice as quick each time it is asked to add or read."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self._entries = 100

    def ask(self, op: str, **arguments: Any) -> Any:
        self.asked.append((op, arguments["zookeeper"]))
        self._entries *= 2
        return {"entries": self._entries, "seconds": 1.0, "cpuSeconds": 0.5, "ledgerId": 7}


class NoCluster:
    bookies = ()

    def __init__(self, zookeeper: str) -> None:
        self.zookeeper = zookeeper


def test_our_client_loads_both_sides_and_its_figures_stand_in_their_order() -> None:
    load = RecordedLoad()
    ours, theirs = (Contestant(load, cast("BookieCluster", NoCluster(name)), ONE) for name in ("ours", "theirs"))
    assert added_by_our_client((ours, theirs), AddRow("x", 1024, 100, 1)) == (200.0, 400.0)
    assert load.asked == [("add", "ours"), ("add", "theirs")]
    assert read_by_our_client((ours, theirs), ReadRow("x", 10_000, False, 1)) == (16.0, 64.0)
    assert load.asked[2:] == [("add", "ours"), ("read", "ours"), ("add", "theirs"), ("read", "theirs")]


def test_a_sample_is_seen_per_second_and_per_entry() -> None:
    answer = {"entries": 1_000, "seconds": 2.0, "cpuSeconds": 0.5}
    sample = Sample(answer, bookie_cpu_s=0.01, resting_cpu_s=0.1, machine_cpu_s=2.61, elapsed_s=4.0)
    assert (sample.entries_per_s, sample.generator_cpu) == (500.0, 0.25)
    assert (round(sample.bookie_cpu_us, 6), sample.resting_cores) == (10.0, 0.025)
    assert round(sample.other_cores, 6) == 0.5


def test_the_machines_cpu_time_leaves_out_idling_and_waiting_for_disks() -> None:
    assert parse_machine_cpu("cpu  1 20 300 9999 9999 4000 50000 600000 7 7\ncpu0 1 2 3\n") == 654_321


def test_the_details_of_a_row_stand_in_its_json_for_both_sides() -> None:
    side = Side((1.0, 2.0, 3.0), (0.1, 0.1, 0.1))
    row = Row("bookie/x", "adds/s", "higher", side, "peer", side, 2.0, 0.8, {"p50 ms": (1.0, 3.0)})
    written = row.as_json()
    assert written["detail"] == {"p50 ms": {"ours": 1.0, "theirs": 3.0}}
    assert {"name", "unit", "better", "ours", "peer", "theirs", "ratio", "goal", "floor"} <= written.keys()
