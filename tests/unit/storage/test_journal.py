"""The journal while it runs: groups, order, files, bounds, failures, closing."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.config.storage import JournalConfig
from magnetar.errors import (
    ClosedError,
    ConfigError,
    DiskFullError,
    JournalFailedError,
    JournalOverloadedError,
    SyncFailedError,
)
from magnetar.runtime.system import SystemRuntime
from magnetar.sim.device import Crash, Fault, SimDevice
from magnetar.storage.journal.format import JournalRecord, RecordKind, file_name
from magnetar.storage.journal.journal import Journal
from tests.unit.storage.journal_worlds import Life, files, live, numbered, replay_of, wait_until

FIRST = f"journal/{file_name(1)}"


# --- groups ---


async def test_what_is_submitted_while_a_sync_runs_is_one_group() -> None:
    device = SimDevice()
    life = await live(device, config=JournalConfig(preallocated_bytes=0))
    await life.wait_prepared()
    life.submit(b"alone")
    await wait_until(lambda: b"alone" in device.cached(FIRST))
    assert life.groups == [], "written, and the sync is under way"
    bodies = [b"%d" % n for n in range(100)]
    life.submit(*bodies)
    await life.wait_durable(bodies[-1])
    assert life.groups == [[b"alone"], bodies]
    journal = life.journal
    assert (journal.groups, journal.records, journal.syncs) == (2, 101, 4), "and one sync per file header"
    await life.aclose()


async def test_one_callback_per_group_and_tokens_in_order_of_submission() -> None:
    life = await live(SimDevice(), config=JournalConfig(group_bytes_max=100, file_bytes_max=4_096))
    bodies = [b"%030d" % n for n in range(50)]
    assert life.submit(*bodies) == list(range(1, 51))
    await life.wait_durable(bodies[-1])
    assert life.durable == bodies
    assert {len(group) for group in life.groups} == {2}
    assert life.journal.durable_sequence == life.journal.last_sequence == 50
    await life.aclose()


async def test_record_larger_than_a_group_goes_alone() -> None:
    device = SimDevice()
    life = await live(device)
    life.submit(b"small", b"x" * 10_000, b"small too")
    await life.wait_durable(b"small too")
    assert [len(group) for group in life.groups] == [1, 1, 1]
    await life.aclose()
    assert await replay_of(device) == numbered(b"small", b"x" * 10_000, b"small too")


async def test_chunks_of_a_record_are_joined_in_the_file_and_kinds_are_kept() -> None:
    device = SimDevice()
    life = await live(device)
    life.journal.submit(RecordKind.FENCE, [b"one", bytearray(b"two"), memoryview(b"three"), b""], "token")
    life.journal.submit(RecordKind.EXPLICIT_LAC, [], "empty")
    await life.wait_durable("empty")
    await life.aclose()
    found: list[JournalRecord] = []
    again = Life(device)
    again._replay = found.append  # type: ignore[method-assign]
    await again.open()
    await again.aclose()
    assert [(record.sequence, record.kind, bytes(record.body)) for record in found] == [
        (1, RecordKind.FENCE, b"onetwothree"),
        (2, RecordKind.EXPLICIT_LAC, b""),
    ]


async def test_submitting_inside_the_callback_makes_the_next_group() -> None:
    life = await live(SimDevice())

    def on_durable(tokens: list[object]) -> None:
        life.groups.append(tokens)
        if len(life.groups) < 5:
            life.submit(b"%d" % len(life.groups))

    life.on_durable = on_durable
    life.submit(b"0")
    await life.wait_durable(b"4")
    assert life.groups == [[b"0"], [b"1"], [b"2"], [b"3"], [b"4"]]
    await life.aclose()


# --- files ---


async def test_numbers_go_on_after_a_restart_in_a_new_file() -> None:
    device = SimDevice()
    first = await live(device)
    assert first.submit(b"1", b"2") == [1, 2]
    await first.aclose()
    before = files(device)[FIRST]
    second = await live(device, seed="second")
    assert second.journal.last_sequence == 2
    assert second.submit(b"3") == [3]
    await second.aclose()
    assert files(device)[FIRST] == before
    assert await replay_of(device) == numbered(b"1", b"2", b"3")


async def test_empty_restarts_do_not_pile_up_files() -> None:
    device = SimDevice()
    for number in range(10):
        life = await live(device, seed=str(number))
        if number == 0:
            await life.write(b"1")
        await life.crash(Crash.POWER_LOSS)
    assert len(files(device)) <= 3
    assert await replay_of(device) == numbered(b"1")


async def test_files_are_rolled_and_no_group_spans_two() -> None:
    device = SimDevice()
    life = await live(device)
    bodies = [b"%0100d" % n for n in range(200)]
    await life.write(*bodies)
    assert len(life.journal.files.old) > 4
    await life.aclose()
    sizes = [len(data) for data in files(device).values()]
    assert max(sizes) <= 4_096
    assert min(sizes[:-2]) > 4_096 - 512 - 100
    assert await replay_of(device) == numbered(*bodies)


async def test_next_file_is_there_before_it_is_needed() -> None:
    device = SimDevice()
    life = await live(device, config=JournalConfig(file_bytes_max=4_096, group_bytes_max=512, preallocated_bytes=0))
    await life.write(b"x" * 400)
    await life.wait_prepared()
    for n in range(100):
        await life.write(b"%0400d" % n)
        assert len(files(device)) > len(life.journal.files.old)
    # One sync per group and one per file: rolling added none.
    assert life.journal.syncs <= life.journal.groups + len(files(device))
    await life.aclose()


async def test_forgetting_removes_whole_files_only_and_never_the_current_one() -> None:
    device = SimDevice()
    life = await live(device)
    bodies = [b"%0400d" % n for n in range(40)]
    await life.write(*bodies)
    count = len(life.journal.files.old) + 1
    assert await life.journal.forget_through(0) == 0
    removed = await life.journal.forget_through(20)
    assert 0 < removed < count - 1
    assert len(life.journal.files.old) + 1 == count - removed
    assert await replay_of_copy(device, mark=20) == numbered(*bodies)[20:]
    assert await life.journal.forget_through(40) == count - removed - 1
    await life.write(b"still there")
    await life.aclose()
    assert await replay_of(device, mark=40) == [(41, b"still there")]


async def replay_of_copy(device: SimDevice, mark: int) -> list[tuple[int, bytes]]:
    """As a process would find it if this one were killed now."""
    copy = SimDevice()
    other = Life(copy, mark=mark)
    await other.disk.make_dir("journal")
    for path, data in files(device).items():
        file = await other.disk.open(path, create=True)
        await file.append_and_sync([data])
        await file.aclose()
    await other.open()
    await other.aclose()
    return other.replayed


async def test_files_of_former_lives_are_forgotten_too() -> None:
    device = SimDevice()
    for life_number in range(3):
        life = await live(device, seed=str(life_number))
        await life.write(b"a", b"b")
        await life.crash(Crash.KILL)
    life = await live(device)
    assert await life.journal.forget_through(4) == 2
    assert await life.journal.forget_through(6) == 1
    assert not life.journal.files.old
    await life.aclose()
    assert await replay_of(device, mark=6) == []


# --- bounds ---


@pytest.mark.parametrize("config", [JournalConfig(queue_entries_max=10), JournalConfig(queue_bytes_max=10 * 105)])
async def test_full_queue_refuses_and_who_waits_gets_room(config: JournalConfig) -> None:
    life = await live(SimDevice(), config=config)
    for n in range(10):
        assert life.journal.has_room
        life.submit(b"%0100d" % n)
    assert not life.journal.has_room
    with pytest.raises(JournalOverloadedError) as raised:
        life.submit(b"one too many")
    assert raised.value.retryable
    waiters = [asyncio.create_task(waiting_submit(life, b"late %d" % n)) for n in range(30)]
    async with asyncio.timeout(10):
        await asyncio.gather(*waiters)
    await life.wait_durable(b"late 29")
    assert len(life.durable) == 40
    assert (life.journal.queue.records, life.journal.queue.bytes) == (0, 0)
    await life.aclose()


async def waiting_submit(life: Life, body: bytes) -> None:
    await life.journal.wait_for_room()
    life.submit(body)


async def test_what_is_being_written_still_takes_room() -> None:
    device = SimDevice()
    life = await live(device, config=JournalConfig(queue_entries_max=1))
    life.submit(b"x")
    await wait_until(lambda: b"x" in device.cached(FIRST)[36:])
    assert not life.journal.has_room
    await life.wait_durable(b"x")
    assert life.journal.has_room
    await life.aclose()


async def test_record_larger_than_the_whole_queue_is_taken_when_the_queue_has_room() -> None:
    life = await live(SimDevice(), config=JournalConfig(queue_bytes_max=10))
    await life.write(b"x" * 1_000, b"y" * 1_000)
    await life.aclose()


def test_groups_larger_than_files_are_refused() -> None:
    with pytest.raises(ConfigError, match="file_bytes_max"):
        JournalConfig(file_bytes_max=4_096, group_bytes_max=4_097)


# --- failures ---


@pytest.mark.parametrize(
    ("fault", "cause"),
    [(Fault.SYNC_ERROR, SyncFailedError), (Fault.FULL, DiskFullError), (Fault.WRITE_ERROR, Exception)],
)
async def test_failed_write_or_sync_is_the_end(fault: Fault, cause: type[Exception]) -> None:
    device = SimDevice()
    life = await live(device)
    await life.write(b"before")
    await life.wait_prepared()
    device.faults.strike_next(fault, FIRST)
    life.submit(b"lost", b"lost too")
    await wait_until(lambda: bool(life.failures))
    life_waits = asyncio.create_task(life.journal.wait_for_room())
    for _ in range(3):
        with pytest.raises(JournalFailedError) as raised:
            life.submit(b"later")
        assert raised.value is life.failures[0]
    with pytest.raises(JournalFailedError):
        await life_waits
    with pytest.raises(JournalFailedError):
        await life.journal.forget_through(1)
    await life.aclose()
    assert len(life.failures) == 1
    assert isinstance(life.failures[0].__cause__, cause)
    assert life.durable == [b"before"]
    assert device.faults.counts[fault] == 1, "nothing was tried again"


async def test_records_behind_a_failed_group_are_not_acknowledged() -> None:
    device = SimDevice()
    life = await live(device, config=JournalConfig(group_bytes_max=10))
    await life.wait_prepared()
    device.faults.strike_next(Fault.SYNC_ERROR, FIRST)
    life.submit(*(b"%010d" % n for n in range(20)))
    await wait_until(lambda: bool(life.failures))
    await life.aclose()
    assert life.durable == []


async def test_waiter_learns_of_the_failure() -> None:
    device = SimDevice()
    life = await live(device, config=JournalConfig(queue_entries_max=1))
    await life.wait_prepared()
    device.faults.strike_next(Fault.SYNC_ERROR, FIRST)
    life.submit(b"x")
    with pytest.raises(JournalFailedError):
        async with asyncio.timeout(10):
            await life.journal.wait_for_room()
    await life.aclose()


async def test_failed_sync_of_a_prepared_file_stops_acknowledging_at_once() -> None:
    device = SimDevice()
    life = Life(device)
    device.faults.strike_next(Fault.SYNC_ERROR, f"journal/{file_name(2)}")
    await life.open()
    await wait_until(lambda: bool(life.failures))
    assert isinstance(life.failures[0].__cause__, SyncFailedError)
    with pytest.raises(JournalFailedError):
        life.submit(b"x")
    await life.aclose()


async def test_group_under_way_when_something_else_fails_is_not_acknowledged() -> None:
    written_in_vain = 0
    for turns in range(40):
        device = SimDevice()
        life = await live(device)
        await life.write(*(b"%0400d" % n for n in range(20)))
        await life.wait_prepared()
        device.faults.strike_next(Fault.SYNC_ERROR, "journal")
        forgetting = asyncio.create_task(life.journal.forget_through(10))
        for _ in range(turns):
            await asyncio.sleep(0)
        if not life.failures:
            life.submit(b"under way")
        with pytest.raises(SyncFailedError):
            await forgetting
        acknowledged = len(life.durable)
        await life.aclose()
        assert len(life.durable) == acknowledged
        assert len(life.failures) == 1
        written_in_vain += life.journal.records > acknowledged
    assert written_in_vain


async def test_full_device_is_named_as_the_cause() -> None:
    device = SimDevice()
    life = await live(device)
    await life.wait_prepared()
    device.leave_room(100)
    life.submit(b"x" * 1_000)
    await wait_until(lambda: bool(life.failures))
    assert isinstance(life.failures[0].__cause__, DiskFullError)
    assert "space" in str(life.failures[0]).lower() or "full" in str(life.failures[0]).lower()
    await life.aclose()
    device.capacity_bytes = None
    assert await replay_of(device) == []


async def test_broken_callback_stops_the_journal_and_is_raised_at_the_end() -> None:
    life = await live(SimDevice())

    def on_durable(tokens: list[object]) -> None:
        raise AssertionError("an invariant is broken")

    life.on_durable = on_durable
    life.submit(b"x")
    await wait_until(lambda: bool(life.failures))
    with pytest.raises(JournalFailedError):
        life.submit(b"y")
    with pytest.raises(AssertionError, match="invariant"):
        await life.journal.aclose()
    await life.disk.aclose()


async def test_what_a_failed_sync_left_in_the_page_cache_is_durable_once_it_was_replayed() -> None:
    survived = 0
    for seed in range(40):
        device = SimDevice(seed=str(seed))
        life = await live(device)
        await life.write(b"before")
        await life.wait_prepared()
        device.faults.strike_next(Fault.SYNC_ERROR, FIRST)
        life.submit(b"in the cache only")
        await wait_until(lambda: bool(life.failures))  # noqa: B023
        await life.crash(Crash.KILL)
        second = await live(device, seed="second")
        survived += len(second.replayed) == 2
        await second.crash(Crash.DROP_UNSYNCED)
        assert await replay_of(device) == second.replayed
    assert survived


# --- closing ---


async def test_closing_writes_what_was_submitted() -> None:
    device = SimDevice()
    life = await live(device)
    bodies = [b"%0100d" % n for n in range(100)]
    life.submit(*bodies)
    await life.journal.aclose()
    assert life.durable == bodies
    await life.journal.aclose()
    with pytest.raises(ClosedError):
        life.submit(b"late")
    with pytest.raises(ClosedError):
        await life.journal.wait_for_room()
    await life.crash(Crash.DROP_UNSYNCED)
    assert await replay_of(device) == numbered(*bodies)


async def test_closed_journal_is_not_rewritten_when_it_opens_again() -> None:
    device = SimDevice()
    life = await live(device)
    await life.write(b"x")
    await life.aclose()
    number = device.tree.file(FIRST).number
    assert await replay_of(device) == numbered(b"x")
    assert device.tree.file(FIRST).number == number


async def test_journal_on_a_real_disk(tmp_path: object) -> None:
    runtime = SystemRuntime()
    bodies = [b"%0300d" % n for n in range(100)]
    for expected in ([], bodies, bodies + bodies):
        replayed: list[bytes] = []
        durable: list[object] = []
        disk = runtime.disk(str(tmp_path), name="journal")
        journal = await Journal.open(
            disk,
            JournalConfig(file_bytes_max=4_096, group_bytes_max=1_024),
            0,
            lambda record: replayed.append(bytes(record.body)),  # noqa: B023
            is_begun=bool(expected),
            entropy=runtime.entropy,
            on_durable=durable.extend,
            on_failed=lambda error: pytest.fail(str(error)),
        )
        assert replayed == expected
        for body in bodies:
            journal.submit(RecordKind.ADDS, [body], body)
        await journal.aclose()
        await disk.aclose()
        assert durable == bodies
        assert journal.longest_sync_s > 0
