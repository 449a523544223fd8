"""Writers on real bookies in this process, while nothing fails."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from magnetar.errors import (
    EntryTooLargeError,
    InvalidQuorumError,
    LedgerClosedError,
    LedgerFencedError,
    MagnetarError,
    WriterFailedError,
    WrongPasswordError,
)
from magnetar.ledger.client import LedgerClient
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerState
from magnetar.quorum.sizes import write_set
from magnetar.testing.waiting import until
from magnetar.wire.bookkeeper.digests import master_key
from magnetar.wire.bookkeeper.frames import FRAME_BYTES_MAX
from magnetar.wire.bookkeeper.messages import AddEntry
from tests.unit.ledger.writing import bodies, ensembles, writer_world

pytestmark = pytest.mark.virtual_time


async def test_adds_return_consecutive_entry_ids() -> None:
    async with writer_world(3) as world, await world.client.create() as writer:
        assert [await writer.add(body) for body in bodies(0, 5)] == [0, 1, 2, 3, 4]
        assert writer.last_confirmed == writer.last_pushed == 4


async def test_what_was_added_is_read_back_in_order() -> None:
    async with writer_world(3) as world:
        async with await world.client.create() as writer:
            await asyncio.gather(*[writer.add(body) for body in bodies(0, 500)])
        assert await world.payloads(writer) == bodies(0, 500)


async def test_payload_may_be_empty_or_a_view() -> None:
    async with writer_world(3) as world:
        async with await world.client.create() as writer:
            await writer.add(b"")
            await writer.add(memoryview(b"a view"))
            await writer.add(bytearray(b"an array"))
        assert await world.payloads(writer) == [b"", b"a view", b"an array"]


async def test_every_bookie_gets_every_entry_when_ensemble_and_write_quorum_are_equal() -> None:
    async with writer_world(3) as world, await world.client.create(ensemble_size=3, ack_quorum=3) as writer:
        await writer.add(b"everywhere")
        assert await world.holders(writer, 0) == world.cluster.bookie_ids


@pytest.mark.parametrize("sizes", [(3, 2, 2), (4, 2, 1), (4, 3, 3), (5, 3, 2)])
async def test_entries_are_striped_over_the_ensemble_by_their_id(sizes: tuple[int, int, int]) -> None:
    ensemble_size, write, ack = sizes
    async with (
        writer_world(ensemble_size) as world,
        await world.client.create(ensemble_size=ensemble_size, write_quorum=write, ack_quorum=ack) as writer,
    ):
        await asyncio.gather(*[writer.add(body) for body in bodies(0, 2 * ensemble_size + 1)])
        ensemble = writer.metadata.fragments[0].ensemble
        for entry_id in range(2 * ensemble_size + 1):
            wanted = sorted(ensemble[position] for position in write_set(ensemble_size, write, entry_id))

            async def is_there(entry_id: int = entry_id, wanted: list[str] = wanted) -> bool:
                return sorted(await world.holders(writer, entry_id)) == wanted

            await until(is_there, f"entry {entry_id} on {wanted}")


async def test_adds_are_acknowledged_in_order() -> None:
    async with writer_world(3) as world, await world.client.create(ack_quorum=3) as writer:
        done: list[int] = []
        world.cluster.hang(2)
        adds = [asyncio.ensure_future(writer.add(body)) for body in bodies(0, 50)]
        for add in adds:
            add.add_done_callback(lambda add: done.append(add.result()))
        await until(lambda: writer.last_pushed == 49, "all are sent")
        world.cluster.wake(2)
        await asyncio.gather(*adds)
        assert done == list(range(50))


async def test_add_is_not_acknowledged_before_the_ack_quorum_has_it() -> None:
    async with writer_world(3, add_timeout_ms=60_000) as world, await world.client.create() as writer:
        await writer.add(b"all are connected")
        world.cluster.hang(0)
        world.cluster.hang(1)
        add = asyncio.ensure_future(writer.add(b"one copy"))

        async def one_has_it() -> bool:
            return (await world.codes(writer, 1, [world.cluster.bookie_ids[2]]))[0] == 0

        await until(one_has_it, "the third bookie has it")
        assert not add.done()
        assert writer.last_confirmed == 0
        world.cluster.wake(1)
        assert await add == 1
        world.cluster.wake(0)


# --- bounds -----------------------------------------------------------------------------------------------------------


async def test_add_waits_in_line_while_the_window_is_full() -> None:
    async with writer_world(3, adds_in_flight_max=2, add_timeout_ms=60_000) as world:
        async with await world.client.create(ack_quorum=3) as writer:
            world.cluster.hang(0)
            adds = [asyncio.ensure_future(writer.add(body)) for body in bodies(0, 6)]
            await until(lambda: writer.last_pushed == 1, "the window is full")
            assert not writer.has_room
            world.cluster.wake(0)
            assert await asyncio.gather(*adds) == [0, 1, 2, 3, 4, 5]
        assert await world.payloads(writer) == bodies(0, 6)


async def test_add_waits_while_too_many_bytes_are_in_flight() -> None:
    async with (
        writer_world(3, add_bytes_in_flight_max=1_000, add_timeout_ms=60_000) as world,
        await world.client.create(ack_quorum=3) as writer,
    ):
        world.cluster.hang(0)
        adds = [asyncio.ensure_future(writer.add(bytes(600))) for _ in range(5)]
        await until(lambda: writer.last_pushed == 1, "two entries are beyond the limit")
        await asyncio.sleep(0)
        assert writer.last_pushed == 1
        world.cluster.wake(0)
        assert await asyncio.gather(*adds) == [0, 1, 2, 3, 4]


async def test_add_whose_caller_stops_waiting_in_line_is_never_sent() -> None:
    async with writer_world(3, adds_in_flight_max=1, add_timeout_ms=60_000) as world:
        async with await world.client.create(ack_quorum=3) as writer:
            world.cluster.hang(0)
            first = asyncio.ensure_future(writer.add(b"first"))
            second = asyncio.ensure_future(writer.add(b"second"))
            third = asyncio.ensure_future(writer.add(b"third"))
            await until(lambda: writer.last_pushed == 0, "the first is sent")
            second.cancel()
            await asyncio.wait([second])
            world.cluster.wake(0)
            assert await asyncio.gather(first, third) == [0, 1]
        assert await world.payloads(writer) == [b"first", b"third"]


async def test_entry_that_fits_no_frame_is_refused_and_the_writer_goes_on() -> None:
    async with writer_world(3) as world, await world.client.create() as writer:
        with pytest.raises(EntryTooLargeError, match="make smaller entries"):
            await writer.add(bytes(FRAME_BYTES_MAX))
        assert await writer.add(b"small") == 0


async def test_too_large_entry_that_waits_in_line_fails_alone() -> None:
    async with writer_world(3, adds_in_flight_max=1) as world, await world.client.create() as writer:
        adds = [asyncio.ensure_future(writer.add(body)) for body in (b"a", bytes(FRAME_BYTES_MAX), b"b")]
        found = await asyncio.gather(*adds, return_exceptions=True)
        assert found[0] == 0
        assert isinstance(found[1], EntryTooLargeError)
        assert found[2] == 1


# --- the listener -----------------------------------------------------------------------------------------------------


class Recorder:
    def __init__(self) -> None:
        self.runs: list[tuple[int, list[Any]]] = []
        self.failed: list[tuple[list[Any], MagnetarError]] = []
        self.room = 0

    def on_confirmed(self, first_entry_id: int, tokens: Sequence[Any]) -> None:
        self.runs.append((first_entry_id, list(tokens)))

    def on_failed(self, tokens: Sequence[Any], error: MagnetarError) -> None:
        self.failed.append((list(tokens), error))

    def on_room(self) -> None:
        self.room += 1

    @property
    def confirmed(self) -> list[Any]:
        return [token for _, tokens in self.runs for token in tokens]


async def test_listener_is_told_once_per_run_and_in_order() -> None:
    recorder = Recorder()
    async with writer_world(3) as world, await world.client.create(listener=recorder) as writer:
        assert [writer.submit(b"payload", f"token-{number}") for number in range(200)] == list(range(200))
        await until(lambda: len(recorder.confirmed) == 200, "all are confirmed")
        assert recorder.confirmed == [f"token-{number}" for number in range(200)]
        assert len(recorder.runs) < 50
        assert [first for first, _ in recorder.runs] == sorted(first for first, _ in recorder.runs)
        assert not recorder.failed


async def test_listener_hears_of_failure_once_with_all_tokens_in_the_window() -> None:
    recorder = Recorder()
    async with writer_world(3) as world:
        writer = await world.client.create(listener=recorder)
        await world.client.recover(writer.ledger_id)
        for token in range(10):
            writer.submit(b"payload", token)
        await until(lambda: recorder.failed, "the writer failed")
        with pytest.raises(LedgerFencedError):
            writer.submit(b"payload", 11)
        with pytest.raises(LedgerFencedError):
            await writer.close()
        ((tokens, error),) = recorder.failed
        assert tokens == list(range(10))
        assert isinstance(error, LedgerFencedError)
        assert error.outcome_unknown


class Broken(Recorder):
    """A listener with a bug."""

    def on_confirmed(self, first_entry_id: int, tokens: Sequence[Any]) -> None:
        super().on_confirmed(first_entry_id, tokens)
        raise KeyError("a bug")

    def on_failed(self, tokens: Sequence[Any], error: MagnetarError) -> None:
        super().on_failed(tokens, error)
        raise KeyError("another bug")


async def test_listener_that_raises_ends_its_writer_and_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    recorder, broken = Recorder(), Broken()
    async with writer_world(3) as world, await world.client.create(listener=recorder) as writer:
        bad = await world.client.create(listener=broken)
        channels = [channel for way in world.client.bookies._dialers.values() for channel in way.channels]
        for token in range(50):
            writer.submit(b"payload", token)
            bad.submit(b"payload", token)
        await until(lambda: len(recorder.confirmed) == 50, "the other writer goes on")
        await until(lambda: broken.failed, "the writer failed")
        assert isinstance(bad.failure, WriterFailedError)
        assert isinstance(bad.failure.__cause__, KeyError)
        with pytest.raises(WriterFailedError, match="a bug"):
            bad.submit(b"payload", 50)
        assert len(broken.runs) == 1
        assert len(broken.confirmed) + len(broken.failed[0][0]) == 50
        assert not any(channel.is_lost for channel in channels)
        assert not recorder.failed
        await bad.close()
        assert bad.metadata.last_entry_id == len(broken.confirmed) - 1
    assert "a listener failed, and its writer with it" in caplog.text
    assert "a listener failed to handle a failure" in caplog.text


# --- fenced -----------------------------------------------------------------------------------------------------------


async def test_fenced_writer_fails_all_pending_adds_and_is_finished() -> None:
    async with writer_world(3) as world:
        writer = await world.client.create()
        await writer.add(b"kept")
        assert (await world.client.recover(writer.ledger_id)).last_entry_id == 0
        found = await asyncio.gather(*[writer.add(body) for body in bodies(0, 5)], return_exceptions=True)
        assert all(isinstance(error, LedgerFencedError) and error.outcome_unknown for error in found)
        with pytest.raises(LedgerFencedError) as refused:
            await writer.add(b"never sent")
        assert not refused.value.outcome_unknown
        with pytest.raises(LedgerFencedError):
            await writer.close()
        assert (await world.client.metadata(writer.ledger_id)).last_entry_id == 0
        assert await world.payloads(writer) == [b"kept"]


async def test_one_fenced_bookie_is_enough_to_stop_the_writer() -> None:
    async with writer_world(3) as world:
        writer = await world.client.create()
        await writer.add(b"kept")
        await world.cluster.nodes[1].running.fencing.fence(writer.ledger_id, master_key(b""))
        await asyncio.gather(writer.add(b"undecided"), return_exceptions=True)
        await until(lambda: writer.failure is not None, "the writer heard of it")
        assert isinstance(writer.failure, LedgerFencedError)


async def test_ledger_that_bookies_know_with_another_key_fails_the_writer() -> None:
    async with writer_world(3) as world:
        digest_bytes = bytes(4)
        body = (77).to_bytes(8, "big") + bytes(24) + digest_bytes
        for bookie_id in world.cluster.bookie_ids:
            channel = await world.client.bookies.channel(bookie_id)
            await channel.request(AddEntry(77, 0, b"k" * 20, body), timeout_s=5)
        writer = await world.client.create(ledger_id=77)
        with pytest.raises(WrongPasswordError):
            await writer.add(b"refused")


# --- ending -----------------------------------------------------------------------------------------------------------


async def test_close_waits_for_adds_in_flight_and_records_the_end() -> None:
    async with writer_world(3) as world:
        writer = await world.client.create(custom_metadata={"who": b"test"})
        adds = [asyncio.ensure_future(writer.add(bytes(10))) for _ in range(20)]
        await asyncio.sleep(0)
        await writer.close()
        assert await asyncio.gather(*adds) == list(range(20))
        stored = await world.client.metadata(writer.ledger_id)
        assert (stored.state, stored.last_entry_id, stored.length) == (LedgerState.CLOSED, 19, 200)
        assert stored.custom_metadata == {"who": b"test"}
        assert stored == writer.metadata


async def test_close_lets_those_who_wait_in_line_go_first() -> None:
    async with writer_world(3, adds_in_flight_max=1) as world:
        writer = await world.client.create()
        adds = [asyncio.ensure_future(writer.add(b"x")) for _ in range(5)]
        await asyncio.sleep(0)
        await writer.close()
        assert await asyncio.gather(*adds) == [0, 1, 2, 3, 4]


async def test_ledger_closed_without_entries_ends_before_the_first() -> None:
    async with writer_world(3) as world:
        async with await world.client.create() as writer:
            pass
        stored = await world.client.metadata(writer.ledger_id)
        assert (stored.state, stored.last_entry_id, stored.length) == (LedgerState.CLOSED, -1, 0)


async def test_closed_writer_refuses_adds_and_may_be_closed_again() -> None:
    async with writer_world(3) as world:
        writer = await world.client.create()
        await asyncio.gather(writer.close(), writer.close())
        await writer.close()
        with pytest.raises(LedgerClosedError) as refused:
            await writer.add(b"late")
        assert not refused.value.outcome_unknown


async def test_released_writer_leaves_the_ledger_open() -> None:
    async with writer_world(3, add_timeout_ms=60_000) as world:
        writer = await world.client.create(ack_quorum=3)
        await writer.add(b"kept")
        world.cluster.hang(0)
        add = asyncio.ensure_future(writer.add(b"undecided"))
        await until(lambda: writer.last_pushed == 1, "it is sent")
        await writer.release()
        with pytest.raises(LedgerClosedError) as failed:
            await add
        assert failed.value.outcome_unknown
        assert (await world.client.metadata(writer.ledger_id)).state is LedgerState.OPEN
        world.cluster.wake(0)


async def test_client_that_ends_takes_its_writers_along_and_closes_no_ledger() -> None:
    async with writer_world(3) as world:
        async with LedgerClient(world.cluster.store, world.cluster.config, world.cluster.runtime) as other:
            writer = await other.create()
            await writer.add(b"kept")
            assert len(other._writers) == 1
        with pytest.raises(LedgerClosedError):
            await writer.add(b"late")
        assert (await world.client.metadata(writer.ledger_id)).state is LedgerState.OPEN
        assert await world.payloads(writer) == [b"kept"]


async def test_error_in_the_body_is_not_hidden_by_a_close_that_fails() -> None:
    async with writer_world(3) as world:
        writer = await world.client.create()
        await world.client.recover(writer.ledger_id)

        async def use() -> None:
            async with writer:
                await asyncio.gather(writer.add(b"x"), return_exceptions=True)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await use()


async def test_quorums_that_do_not_fit_are_refused() -> None:
    async with writer_world(3) as world:
        with pytest.raises(InvalidQuorumError, match="write quorum 4"):
            await world.client.create(ensemble_size=3, write_quorum=4)


async def test_idle_writer_survives_the_restart_of_a_bookie_without_an_ensemble_change() -> None:
    async with writer_world(4) as world, await world.client.create() as writer:
        await writer.add(b"before")
        before = ensembles(writer)
        await world.cluster.restart(before[0][1][0])
        assert await writer.add(b"after") == 1
        await until(lambda: not writer._engine.unanswered, "everybody answered")
        assert ensembles(writer) == before
        assert writer.statistics().bookies_failed == 0
