"""Full disks: what follows from a measurement, that it is done, and what an operator says besides."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from magnetar.bookie.directories import STATUS_FILE, BookieDirectories, DirectoryLayout, open_directories
from magnetar.bookie.read_only import (
    DiskGauge,
    DiskVerdict,
    DiskWatch,
    ReadOnlyReason,
    ReadOnlySwitch,
    Status,
    decode_status,
    encode_status,
    read_operator_status,
    write_operator_status,
)
from magnetar.config.bookie import BookieConfig
from magnetar.errors import ConfigError, DiskError, DiskFullError
from magnetar.runtime.disk import DiskUsage
from magnetar.runtime.metrics import Metrics
from magnetar.runtime.system import SystemRuntime
from magnetar.sim.device import Crash, Fault
from magnetar.sim.machine import SimMachine
from magnetar.testing.waiting import until

TOTAL = 1_000
CONFIG = BookieConfig(
    disk_usage_threshold_percent=95,
    disk_usage_warn_percent=90,
    disk_usage_low_water_mark_percent=80,
    disk_reserve_compaction_bytes=20,
    disk_reserve_high_priority_bytes=30,
    disk_check_interval_ms=10,
)


def used(number: int) -> DiskUsage:
    return DiskUsage(total_bytes=TOTAL, free_bytes=TOTAL - number)


# --- the decision -----------------------------------------------------------------------------------------------------


def test_a_disk_at_the_threshold_is_not_full_and_above_it_is() -> None:
    assert not DiskGauge(CONFIG).decide({"/a": used(950)}).is_read_only
    assert DiskGauge(CONFIG).decide({"/a": used(951)}).is_read_only


def test_a_full_disk_stays_full_until_it_is_below_the_low_water_mark() -> None:
    gauge = DiskGauge(CONFIG)
    course = (940, 951, 949, 900, 801, 800, 799, 800, 950, 951)
    verdicts = [gauge.decide({"/a": used(number)}).is_read_only for number in course]
    assert verdicts == [False, True, True, True, True, True, False, False, False, True]


def test_one_full_directory_is_enough_and_each_has_its_own_memory() -> None:
    gauge = DiskGauge(CONFIG)
    assert gauge.decide({"/a": used(960), "/b": used(10)}).full == ("/a",)
    assert gauge.decide({"/a": used(850), "/b": used(960)}).full == ("/a", "/b")
    assert gauge.decide({"/a": used(700), "/b": used(850)}).full == ("/b",)
    assert gauge.decide({"/a": used(850), "/b": used(700)}).full == ()


def test_a_disk_above_the_warning_is_almost_full() -> None:
    verdict = DiskGauge(CONFIG).decide({"/a": used(901), "/b": used(900)})
    assert verdict == DiskVerdict(almost_full=("/a",))


def test_a_full_disk_keeps_room_for_compaction_and_for_high_priority_writes() -> None:
    gauge = DiskGauge(CONFIG)
    rooms = {number: gauge.decide({"/a": used(number)}) for number in (960, 969, 970, 979, 980, 1000)}
    assert [v.high_priority_writes for v in rooms.values()] == [True, True, False, False, False, False]
    assert [v.compaction for v in rooms.values()] == [True, True, True, True, False, False]


def test_a_small_disk_with_less_than_the_reserve_is_no_trouble_while_it_is_not_full() -> None:
    small = DiskUsage(total_bytes=25, free_bytes=15)
    assert DiskGauge(CONFIG).decide({"/a": small}) == DiskVerdict()


def test_a_directory_that_cannot_be_measured_counts_as_full_until_it_can() -> None:
    gauge = DiskGauge(CONFIG)
    verdict = gauge.decide({"/a": None, "/b": used(1)})
    assert verdict.full == ("/a",)
    assert not verdict.high_priority_writes
    assert gauge.decide({"/a": used(850), "/b": used(1)}).full == ("/a",)
    assert gauge.decide({"/a": used(1), "/b": used(1)}).full == ()


@pytest.mark.parametrize("name", ["disk_usage_low_water_mark_percent", "disk_usage_warn_percent"])
def test_marks_above_the_threshold_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        dataclasses.replace(CONFIG, **{name: 96})  # type: ignore[arg-type]


# --- the loop ---------------------------------------------------------------------------------------------------------


class Node:
    """A bookie's directories on two simulated devices of 1,000 bytes."""

    def __init__(self, config: BookieConfig = CONFIG) -> None:
        self.machine = SimMachine("disks")
        self.devices = [self.machine.mount(path) for path in ("/journal", "/ledgers")]
        for device in self.devices:
            device.capacity_bytes = 100_000
        self.switch = ReadOnlySwitch()
        self.config = config
        self.changes: list[bool] = []

    async def open(self) -> tuple[DiskWatch, BookieDirectories]:
        layout = DirectoryLayout(("/journal/d",), ("/ledgers/d",))
        self.directories = await open_directories(self.machine.start(), layout)
        self.switch.listen(self.changes.append)
        return DiskWatch(self.directories.all, self.config, self.switch), self.directories

    async def fill(self, number: int, size: int) -> None:
        disk = self.directories.all[number].disk
        file = await disk.open("data", create=True)
        if size >= file.size:
            await file.append([bytes(size - file.size)])
        else:
            await file.truncate(size)
        await file.aclose()


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    node = Node()
    yield node
    await node.directories.aclose()


@pytest.mark.parametrize("number", [0, 1])
async def test_a_disk_that_fills_makes_the_bookie_read_only_and_back(number: int, node: Node) -> None:
    watch, _ = await node.open()
    await watch.check()
    watch.start()
    await node.fill(number, 96_000)
    await until(lambda: node.switch.is_read_only, "read-only")
    assert node.switch.reasons == (ReadOnlyReason.DISK_FULL,)
    await node.fill(number, 90_000)
    await watch.check()
    assert node.switch.is_read_only, "above the low water mark"
    await node.fill(number, 50_000)
    await until(lambda: not node.switch.is_read_only, "writable")
    assert node.changes == [True, False]
    await watch.aclose()


async def test_the_reserve_reaches_the_switch(node: Node) -> None:
    watch, _ = await node.open()
    await node.fill(1, 96_000)
    await watch.check()
    assert node.switch.takes_high_priority
    await node.fill(1, 99_980)
    await watch.check()
    assert node.switch.is_read_only
    assert not node.switch.takes_high_priority


async def test_a_bookie_that_must_not_turn_read_only_is_told_to_stop() -> None:
    node = Node(BookieConfig(read_only_mode_enabled=False, disk_check_interval_ms=10))
    watch, directories = await node.open()
    await watch.check()
    watch.start()
    await node.fill(0, 99_000)
    async with asyncio.timeout(10):
        error = await watch.wait_failed()
    assert isinstance(error, DiskFullError)
    assert "/journal/d is fuller than 95 %" in str(error)
    assert not node.switch.is_read_only
    await watch.aclose()
    await directories.aclose()


async def test_the_real_disk_is_measured_and_published(tmp_path: Path) -> None:
    layout = DirectoryLayout.from_config(BookieConfig(dir=str(tmp_path)), base="/")
    directories = await open_directories(SystemRuntime(), layout)
    config = BookieConfig(disk_usage_threshold_percent=99, disk_reserve_high_priority_bytes=0)
    watch = DiskWatch(directories.all, config, ReadOnlySwitch())
    metrics = Metrics()
    watch.observe(metrics)
    await watch.check()
    ratio = f'magnetar_bookie_disk_used_ratio{{directory="{tmp_path}/journal"}} 0.'
    assert ratio in metrics.render().decode()
    await watch.aclose()
    assert ratio not in metrics.render().decode()
    await directories.aclose()


# --- reasons and the operator's -------------------------------------------------------------------------------------


def test_a_bookie_is_read_only_while_there_is_any_reason() -> None:
    switch = ReadOnlySwitch()
    heard: list[bool] = []
    switch.listen(heard.append)
    switch.set(ReadOnlyReason.OPERATOR, True)
    switch.set(ReadOnlyReason.DISK_FULL, True)
    switch.set(ReadOnlyReason.DISK_FULL, True)
    switch.set(ReadOnlyReason.DISK_FULL, False)
    assert switch.is_read_only
    switch.set(ReadOnlyReason.OPERATOR, False)
    switch.set(ReadOnlyReason.OPERATOR, False)
    assert heard == [True, False]


async def test_what_an_operator_says_survives_a_power_loss(node: Node) -> None:
    _, directories = await node.open()
    assert not await read_operator_status(directories)
    for wanted in (True, False, True):
        await write_operator_status(directories, node.machine.start().entropy, is_read_only=wanted)
        node.machine.crash(Crash.DROP_UNSYNCED)
        node.directories = directories = await open_directories(node.machine.start(), directories.layout)
        assert await read_operator_status(directories) is wanted
    node.machine.release_dead()


async def test_the_last_word_counts_even_if_the_clock_went_back_and_one_directory_missed_it() -> None:
    machine = SimMachine("status")
    machine.mount("/bad")
    runtime = machine.start()
    directories = await open_directories(runtime, DirectoryLayout(("/j",), ("/bad/l", "/good/l")))
    far = encode_status(Status(is_read_only=True, updated_ms=10**15, by_operator=True))
    for directory in directories.ledger:
        await directory.write(STATUS_FILE, far)
    machine.device("/bad").faults.strike_next(Fault.FULL)
    await write_operator_status(directories, runtime.entropy, is_read_only=False)
    assert await directories.first_ledger.read(STATUS_FILE) == far
    assert not await read_operator_status(directories)
    await directories.aclose()


async def test_one_directory_that_takes_the_status_is_enough() -> None:
    machine = SimMachine("status")
    machine.mount("/bad")
    runtime = machine.start()
    directories = await open_directories(runtime, DirectoryLayout(("/j",), ("/bad/l", "/good/l")))
    machine.device("/bad").faults.strike_next(Fault.FULL)
    await write_operator_status(directories, runtime.entropy, is_read_only=True)
    assert await directories.first_ledger.read(STATUS_FILE) is None
    assert await read_operator_status(directories)
    for path in ("/bad", "/good"):
        machine.device(path).faults.strike_next(Fault.FULL)
    with pytest.raises(DiskError):
        await write_operator_status(directories, runtime.entropy, is_read_only=False)
    assert await read_operator_status(directories)
    await directories.aclose()


def test_a_status_is_what_apache_writes() -> None:
    assert encode_status(Status(True, 1_700_000_000_000, True)) == b"1,READ_ONLY,1700000000000,true\n"
    assert decode_status(b"1,READ_ONLY,1700000000000,false\n") == Status(True, 1_700_000_000_000, False)
    assert decode_status(b"1,READ_WRITE,17,true") == Status(False, 17, True)
    assert decode_status(b"1,READ_ONLY,17\n") == Status(True, 17, True), "older releases wrote it only for operators"


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"2,READ_ONLY,1,true", b"1,SOMETIMES,1,true", b"1,READ_ONLY,then,true", b"\xff\xfe", b"1"]
)
def test_what_is_no_status_is_ignored(content: bytes) -> None:
    assert decode_status(content) is None


async def test_a_running_bookie_follows_what_an_operator_writes_into_its_directories(node: Node) -> None:
    _, directories = await node.open()
    watch = DiskWatch(directories.all, node.config, node.switch, lambda: read_operator_status(directories))
    await watch.check()
    watch.start()
    entropy = node.machine.start().entropy
    for wanted in (True, False, True):
        await write_operator_status(directories, entropy, is_read_only=wanted)
        await until(lambda wanted=wanted: node.switch.is_read_only is wanted, f"read-only: {wanted}")  # type: ignore[misc]
    assert node.switch.reasons == (ReadOnlyReason.OPERATOR,)
    assert node.changes == [True, False, True]
    await watch.aclose()


async def test_a_status_that_cannot_be_read_changes_nothing(node: Node) -> None:
    _, directories = await node.open()
    watch = DiskWatch(directories.all, node.config, node.switch, lambda: read_operator_status(directories))
    await write_operator_status(directories, node.machine.start().entropy, is_read_only=True)
    await watch.check()
    assert node.switch.is_read_only
    node.devices[1].faults.strike_next(Fault.READ_ERROR)
    await watch.check()
    assert node.switch.is_read_only
    await watch.check()
    assert node.changes == [True]
