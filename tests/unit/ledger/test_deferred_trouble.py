"""Writers with deferred sync, whose adds share the v3 connection of a bookie with all other requests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from magnetar.bookie.connection import Connection
from magnetar.bookie.requests import Requests
from magnetar.errors import BookieUnavailableError, EntryTooLargeError, WriterFailedError
from magnetar.ids import BookieId
from magnetar.ledger.channels.channel import Channel
from magnetar.ledger.channels.connection import V3Connection
from magnetar.ledger.writing.writer import LedgerWriter
from magnetar.testing.waiting import until
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.frames import FRAME_BYTES_MAX
from magnetar.wire.bookkeeper.messages import AnyResponse, ForceLedger, ReadEntry, ReadLac, answer_to
from tests.unit.ledger.writing import WriterWorld, add_all, bodies, writer_world

pytestmark = pytest.mark.virtual_time

ENTRY = bytes(12_000)
SECONDS = 10.0


async def test_deferred_writer_waits_for_a_connection_that_others_fill(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        writer_world(3, slow_bookie_wait_ms=60_000) as world,
        await world.client.create(ack_quorum=2, deferred_sync=True) as writer,
    ):
        await writer.add(b"connected")
        await until(lambda: not writer._engine.unanswered, "all have answered")
        with monkeypatch.context() as patch:
            patch.setattr(V3Connection, "is_writable", False)
            assert await writer.add(b"sent") == 1
            waiting = asyncio.ensure_future(writer.add(b"in line"))
            await asyncio.sleep(0)
            assert not writer.has_room
            assert writer.last_pushed == 1
        for connection in full_connections(writer):
            connection._owner.on_room()
        assert await waiting == 2


def full_connections(writer: LedgerWriter) -> list[V3Connection]:
    channels: list[Any] = [slot.channel for slot in writer._engine.slots]
    return [channel._requests._v3 for channel in channels]


async def test_deferred_writer_fails_when_it_waited_too_long_for_a_full_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with writer_world(3, slow_bookie_wait_ms=100) as world:
        writer = await world.client.create(ack_quorum=2, deferred_sync=True)
        await writer.add(b"connected")
        with monkeypatch.context() as patch:
            patch.setattr(V3Connection, "is_writable", False)
            await writer.add(b"sent")
            async with asyncio.timeout(SECONDS):
                with pytest.raises(WriterFailedError, match="too slow"):
                    await writer.add(b"in line")
        await writer.release()


async def test_deferred_entry_that_only_v2_could_carry_is_refused_and_the_writer_goes_on() -> None:
    async with writer_world(3) as world, await world.client.create(deferred_sync=True) as writer:
        largest = writer._engine.payload_bytes_max
        assert FRAME_BYTES_MAX - 150 < largest < FRAME_BYTES_MAX - 100
        with pytest.raises(EntryTooLargeError, match="make smaller entries"):
            await writer.add(bytes(largest + 1))
        assert await writer.add(bytes(largest)) == 0


async def test_burst_of_deferred_adds_leaves_room_for_requests_of_others() -> None:
    async with (
        writer_world(3, channel_unsent_bytes_max=2**20) as world,
        await world.client.create(ack_quorum=2, deferred_sync=True) as writer,
    ):
        await writer.add(b"connected")
        adds = [asyncio.ensure_future(writer.add(ENTRY)) for _ in range(2_400)]
        for _ in range(10):
            await asyncio.sleep(0)
            assert all(slot.channel is not None and slot.channel.is_v3_writable for slot in writer._engine.slots)
        assert writer.last_pushed < len(adds)  # Some wait in line.
        await asyncio.gather(*adds)


async def deferred_adds_that_one_bookie_owes(world: WriterWorld, writers: Sequence[LedgerWriter], entries: int) -> str:
    """The bookie takes nothing for now; the others confirm everything. Returns its id."""
    slow = writers[0].metadata.fragments[0].ensemble[2]
    world.cluster.hang(slow)
    await asyncio.gather(*[add_all(writer, 0, entries) for writer in writers])
    return slow


async def test_adds_of_deferred_writers_take_no_room_from_requests_to_the_same_bookie() -> None:
    async with writer_world(3, requests_in_flight_max=20) as world:
        writers = [await world.client.create(ack_quorum=2, deferred_sync=True) for _ in range(4)]
        slow = await deferred_adds_that_one_bookie_owes(world, writers, 20)
        channel = await world.client.bookies.channel(BookieId(slow))
        reads = [
            asyncio.ensure_future(channel.request(ReadEntry(writers[0].ledger_id, entry), timeout_s=SECONDS))
            for entry in range(20)
        ]
        await asyncio.sleep(0)
        with pytest.raises(BookieUnavailableError, match="owes 20 answers"):
            await channel.request(ReadLac(7), timeout_s=SECONDS)
        world.cluster.wake(slow)
        assert [response.code for response in await asyncio.gather(*reads)] == [Code.EOK] * 20
        for writer in writers:
            await writer.close()


async def test_deferred_writers_close_their_ledgers_although_one_bookie_owes_many_answers_to_their_adds() -> None:
    async with writer_world(3, requests_in_flight_max=20) as world:
        writers = [await world.client.create(ack_quorum=2, deferred_sync=True) for _ in range(4)]
        slow = await deferred_adds_that_one_bookie_owes(world, writers, 20)
        closing = [asyncio.ensure_future(writer.close()) for writer in writers]
        await asyncio.wait(closing, timeout=0.1)
        world.cluster.wake(slow)
        await asyncio.gather(*closing)
        for writer in writers:
            assert await world.payloads(writer) == bodies(0, 20)


async def test_force_is_sent_after_adds_that_filled_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async with writer_world(3) as world, await world.client.create(ack_quorum=2, deferred_sync=True) as writer:
        await writer.add(b"entry")
        with monkeypatch.context() as patch:
            patch.setattr(V3Connection, "is_writable", False)
            assert await writer.force() == 0


# --- bookies that have too many requests when they are asked to force -------------------------------------------------


class Busy:
    """All bookies together refuse to force a ledger, a number of times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
        self.left = times
        force = Requests._force

        async def refuse(requests: Requests, connection: Connection, request: ForceLedger) -> AnyResponse:
            if self.left == 0:
                return await force(requests, connection, request)
            self.left -= 1
            return answer_to(request, Code.ETOOMANYREQUESTS)

        monkeypatch.setattr(Requests, "_force", refuse)


async def test_bookies_that_have_too_many_requests_for_a_moment_are_asked_to_force_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    busy = Busy(monkeypatch, 9)
    async with writer_world(3) as world, await world.client.create(ack_quorum=2, deferred_sync=True) as writer:
        await writer.add(b"entry")
        assert await writer.force() == 0
        assert busy.left == 0


async def test_force_that_bookies_refuse_for_long_has_failed_and_may_be_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    busy = Busy(monkeypatch, 1_000_000)
    async with writer_world(3) as world:
        writer = await world.client.create(ack_quorum=2, deferred_sync=True)
        await writer.add(b"entry")
        await until(lambda: not writer._engine.unanswered, "all have answered")
        monkeypatch.setattr(writer._engine, "_timeout_s", 0.5)
        before = len(asyncio.all_tasks())
        with pytest.raises(BookieUnavailableError, match="ETOOMANYREQUESTS") as caught:
            await writer.force()
        assert caught.value.retryable
        assert len(asyncio.all_tasks()) == before, "nobody goes on asking"
        assert writer.failure is None
        with pytest.raises(BookieUnavailableError):
            await writer.close()
        busy.left = 0
        await writer.close()
        assert await world.payloads(writer) == [b"entry"]


# --- a bookie that cannot be reached at the beginning -----------------------------------------------------------------


def make_unreachable(world: WriterWorld, bad: BookieId) -> None:
    reach = world.client.bookies.channel

    async def channel(bookie_id: BookieId, *, ledger_id: int | None = None) -> Channel:
        if bookie_id == bad:
            raise BookieUnavailableError("nobody is there")
        return await reach(bookie_id, ledger_id=ledger_id)

    world.client.bookies.channel = channel  # type: ignore[method-assign]


@pytest.mark.parametrize("number", [0, 1, 2])
async def test_deferred_writer_is_not_created_without_all_of_its_bookies_and_nothing_is_left_of_it(number: int) -> None:
    async with writer_world(3) as world:
        make_unreachable(world, world.cluster.bookie_ids[number])
        for _ in range(3):
            with pytest.raises(WriterFailedError, match="nobody is there"):
                await world.client.create(ack_quorum=2, deferred_sync=True)
        ways = world.client.bookies._dialers.values()
        assert not [list(channel._writers) for way in ways for channel in way.channels if channel._writers]
        assert len(world.client._writers) == 0
        assert [ledger async for ledger in world.client.list()] == []


async def test_id_of_a_ledger_that_was_not_created_can_be_used_again() -> None:
    async with writer_world(3) as world:
        reach = world.client.bookies.channel
        make_unreachable(world, world.cluster.bookie_ids[0])
        with pytest.raises(WriterFailedError):
            await world.client.create(deferred_sync=True, ledger_id=77)
        world.client.bookies.channel = reach  # type: ignore[method-assign]
        async with await world.client.create(deferred_sync=True, ledger_id=77) as writer:
            assert await writer.add(b"entry") == 0


async def test_channel_does_not_wait_for_answers_that_were_requests_of_a_deferred_writer() -> None:
    async with writer_world(3) as world:
        writer = await world.client.create(deferred_sync=True)
        await writer.add(b"connected")
        channels = [slot.channel for slot in writer._engine.slots]
        for bookie in range(3):
            world.cluster.hang(bookie)
        add = asyncio.ensure_future(writer.add(b"undecided"))
        await until(lambda: writer._engine.unanswered, "it is sent")
        await writer.release()
        await asyncio.wait([add])
        assert add.exception() is not None
        assert all(channel is not None and channel.can_attach(writer.ledger_id) for channel in channels)
        for bookie in range(3):
            world.cluster.wake(bookie)


async def test_one_broken_connection_of_a_deferred_writer_is_one_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    async with writer_world(3) as world:
        reported: list[BookieId] = []
        monkeypatch.setattr(world.client.bookies, "report_failure", reported.append)
        writer = await world.client.create(ack_quorum=3, deferred_sync=True)
        victim = writer.metadata.fragments[0].ensemble[0]
        world.cluster.hang(victim)
        adds = [writer.enqueue(b"undecided") for _ in range(50)]
        await until(lambda: all(slot.sent == 50 for slot in writer._engine.slots), "they are sent")
        await world.cluster.kill(victim)
        failures = await asyncio.gather(*adds, return_exceptions=True)
        assert all(isinstance(failure, WriterFailedError) for failure in failures)
        await writer.release()  # Nothing of it runs any more.
        assert reported == [victim]
