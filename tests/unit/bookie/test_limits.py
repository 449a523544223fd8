"""Every limit of a whole bookie, driven over its edge by clients: what they see, what is counted, and that it passes.

On simulated disks that are as slow as a test wants, in virtual time. The limit on clients that do not read is about
real sockets and real memory: tests/integration/bookie/test_slow_clients.py.
"""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from magnetar.config.root import Config
from magnetar.testing.waiting import until
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.ends import decode_response, encode_request
from magnetar.wire.bookkeeper.hot_path import AddEncoder
from magnetar.wire.bookkeeper.messages import V2, AnyResponse, ReadEntry
from tests.unit.bookie.node_story import DIGEST, KEY
from tests.unit.bookie.one_node import Test, metric, on_a_node, slow, writer, written
from tests.unit.bookie.sim_node import SimNode


class Reader:
    """Sends the compact reads of a test, and gathers the answers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, node: SimNode) -> Reader:
        return cls(*await asyncio.open_connection("127.0.0.1", node.bookie.port))

    def send(self, ledger_id: int, entry_ids: range) -> None:
        """In one write."""
        self._writer.write(b"".join(encode_request(ReadEntry(ledger_id, entry, version=V2)) for entry in entry_ids))

    def write(self, frames: bytes) -> None:
        self._writer.write(frames)

    async def answers(self, count: int) -> list[AnyResponse]:
        return [await self._answer() for _ in range(count)]

    async def _answer(self) -> AnyResponse:
        head = await self._reader.readexactly(4)
        frame = head + await self._reader.readexactly(int.from_bytes(head, "big"))
        decoded = decode_response(frame, 0, len(frame), V2)
        assert decoded is not None
        return decoded.response

    def close(self) -> None:
        self._writer.close()


# --- adds -------------------------------------------------------------------------------------------------------------


def test_writers_wait_while_too_many_adds_are_in_progress() -> None:
    async def test(node: SimNode) -> None:
        slow(node.journal, seconds=0.05)
        loads = [await writer(node, ledger_id) for ledger_id in range(10)]
        peak = 0
        for load in loads:
            load.begin(4)
        for _ in range(200):
            await asyncio.sleep(0.01)
            peak = max(peak, node.bookie.adds.in_progress)
        for load in loads:
            load.finish()
            await load.wait_for(lambda load: not load.in_flight)
            assert len(load.acknowledged) > 4, "held, not forgotten"
            assert load.refused == []
        assert 8 <= peak < 8 + 4, "a run that was begun below the limit is taken whole"
        assert metric(node.bookie, "adds_held_total") > 0
        assert metric(node.bookie, "adds_in_progress") == 0

    on_a_node(test, bookie={"adds_in_progress_max": 8}, journal={"queue_entries_max": 1_000})


def test_a_writer_with_more_adds_than_its_limit_is_held_and_not_refused_while_the_bookie_writes() -> None:
    """As at the slowest of three bookies, when two are enough: more may wait there than the writer has in flight."""

    async def test(node: SimNode) -> None:
        reader = await Reader.connect(node)
        slow(node.journal, seconds=0.5)
        for entry_id in range(20):
            reader.write(add_of(1, entry_id))
            await asyncio.sleep(0.01)  # Each is a run of its own.
        assert [answer.code for answer in await reader.answers(20)] == [Code.EOK] * 20
        assert metric(node.bookie, "writers_held_total") > 0
        assert metric(node.bookie, "refused_adds_total") == 0
        reader.close()

    on_a_node(test, bookie={"pending_adds_per_writer_max": 5})


def test_a_writer_whose_pending_adds_stay_too_many_is_refused_and_its_neighbour_is_served() -> None:
    async def test(node: SimNode) -> None:
        greedy, modest = await writer(node, 1), await writer(node, 2)
        slow(node.journal, seconds=5.0)
        modest.begin(2)
        greedy.begin(4)
        await asyncio.sleep(0.1)
        greedy.begin(8)
        await greedy.wait_for(lambda load: bool(load.refused))
        greedy.finish()
        await greedy.wait_for(lambda load: not load.in_flight)
        await modest.wait_for(lambda load: len(load.acknowledged) > 10)
        modest.finish()
        assert {code for _, code in greedy.refused} == {Code.ETOOMANYREQUESTS}
        assert modest.refused == []
        assert metric(node.bookie, "refused_adds_total") == len(greedy.refused) > 0
        greedy.begin(5, first_entry=1_000_000)
        greedy.finish()
        await greedy.wait_for(lambda load: not load.in_flight)
        assert max(greedy.acknowledged) > 1_000_000, "within the limit it is served again"

    on_a_node(test, bookie={"pending_adds_per_writer_max": 5, "pending_adds_per_writer_wait_ms": 200})


def test_more_adds_at_once_than_a_writer_may_have_waiting_are_taken_if_nothing_is() -> None:
    """They would come as many again, and never pass."""

    async def test(node: SimNode) -> None:
        load = await writer(node, 1)
        load.begin(20)
        load.finish()
        await load.wait_for(lambda load: not load.in_flight)
        assert len(load.acknowledged) == 20
        assert metric(node.bookie, "writers_held_total") == 0

    on_a_node(test, bookie={"pending_adds_per_writer_max": 5})


def test_writers_wait_while_the_journals_queue_is_full() -> None:
    async def test(node: SimNode) -> None:
        slow(node.journal, seconds=0.02)
        loads = [await writer(node, ledger_id) for ledger_id in range(8)]
        for load in loads:
            load.begin(3)
        for load in loads:
            await load.wait_for(lambda load: len(load.acknowledged) > 10)
            load.finish()
        for load in loads:
            await load.wait_for(lambda load: not load.in_flight)
            assert load.refused == []
        assert metric(node.bookie, "journal_held_total") > 0

    on_a_node(test, journal={"queue_entries_max": 2})


def test_writers_of_many_new_ledgers_meet_a_nearly_full_journal_queue_and_keep_their_connections() -> None:
    """Nothing is left in progress either, or the gate of `adds_in_progress_max` would never open again."""

    async def test(node: SimNode) -> None:
        for first in range(100, 400, 50):
            reader = await Reader.connect(node)
            reader.write(b"".join(add_of(ledger_id) for ledger_id in range(first, first + 50)))
            assert {answer.code for answer in await reader.answers(50)} == {Code.EOK}
            reader.close()
        assert metric(node.bookie, "adds_in_progress") == 0

    on_a_node(test, journal={"queue_entries_max": 8, "queue_bytes_max": 1_000}, bookie={"adds_in_progress_max": 5})


def add_of(ledger_id: int, entry_id: int = 0) -> bytes:
    """A compact one."""
    return AddEncoder(ledger_id, KEY, DIGEST).header(entry_id, -1, 4, b"data") + b"data"


def test_adds_wait_for_a_full_write_cache_and_are_refused_when_it_takes_too_long() -> None:
    async def test(node: SimNode) -> None:
        load = await writer(node, 1)
        slow(*node.ledgers, seconds=1.0)
        begun = asyncio.get_running_loop().time()
        load.begin(10)
        await load.wait_for(lambda load: bool(load.refused))
        load.finish()
        assert load.refused[0][1] is Code.ETOOMANYREQUESTS
        assert asyncio.get_running_loop().time() - begun > 3.0, "it was held first"
        assert metric(node.bookie, "cache_held_total") > 0
        assert node.bookie._storage.active.bytes < 3 * 4_096
        slow(*node.ledgers, seconds=0.0)
        await until(lambda: not node.bookie.adds.cache_gate.is_shut, "room again", seconds=600)
        await written(node, 2, 50)

    on_a_node(test, busy=True, storage={"max_throttle_ms": 3_000})


def test_adds_that_waited_for_a_full_write_cache_for_a_moment_are_taken() -> None:
    async def test(node: SimNode) -> None:
        slow(*node.ledgers, seconds=0.01)
        load = await writer(node, 1)
        load.begin(30)
        await load.wait_for(lambda load: len(load.acknowledged) > 300, seconds=600)
        load.finish()
        await load.wait_for(lambda load: not load.in_flight, seconds=600)
        assert load.refused == []
        assert metric(node.bookie, "cache_held_total") > 0

    on_a_node(test, busy=True, storage={"max_throttle_ms": 60_000})


# --- reads ------------------------------------------------------------------------------------------------------------


async def out_of_the_caches(node: SimNode) -> None:
    """60 entries of ledger 1, each of which must be read from the disk, and slowly."""
    await written(node, 1, 60)
    await node.bookie.flush()
    slow(*node.ledgers, seconds=0.02)


def test_readers_wait_while_too_many_reads_are_in_progress() -> None:
    async def test(node: SimNode) -> None:
        await out_of_the_caches(node)
        readers = [await Reader.connect(node) for _ in range(10)]
        for reader in readers:
            reader.send(1, range(0, 60, 20))
            await asyncio.sleep(0)
        await until(lambda: metric(node.bookie, "reads_held_total"), "some are held")
        assert node.bookie.reads.in_progress < 6 + 3, "a run that was begun below the limit is taken whole"
        for reader in readers:
            assert [answer.code for answer in await reader.answers(3)] == [Code.EOK] * 3
            reader.close()
        assert metric(node.bookie, "reads_in_progress") == 0

    on_a_node(test, bookie={"reads_in_progress_max": 6}, storage={"read_cache_bytes_max": 0})


def test_a_reader_with_too_many_pending_reads_is_refused_and_its_neighbour_is_served() -> None:
    async def test(node: SimNode) -> None:
        await out_of_the_caches(node)
        greedy, modest = await Reader.connect(node), await Reader.connect(node)
        greedy.send(1, range(20))
        modest.send(1, range(5))
        codes = [answer.code for answer in await greedy.answers(20)]
        assert sorted(codes) == sorted([Code.EOK] * 5 + [Code.ETOOMANYREQUESTS] * 15)
        assert [answer.code for answer in await modest.answers(5)] == [Code.EOK] * 5
        assert metric(node.bookie, "refused_reads_total") == 15
        greedy.send(1, range(5))
        assert [answer.code for answer in await greedy.answers(5)] == [Code.EOK] * 5
        greedy.close()
        modest.close()

    on_a_node(test, bookie={"pending_reads_per_reader_max": 5}, storage={"read_cache_bytes_max": 0})


# --- by default -------------------------------------------------------------------------------------------------------


def by_default(test: Test) -> None:
    default = Config()
    on_a_node(
        test,
        journal=dataclasses.asdict(default.journal),
        storage=dataclasses.asdict(default.storage),
    )


# --- receiving --------------------------------------------------------------------------------------------------------

ANNOUNCED_BYTES = 5_253_000
HALF_A_FRAME = ANNOUNCED_BYTES.to_bytes(4, "big") + bytes([2, 1, 0, 0]) + bytes(300_000)


def test_unfinished_frames_stay_within_their_limit_and_those_that_do_not_continue_are_closed() -> None:
    async def test(node: SimNode) -> None:
        load = await writer(node, 1)
        silent = [await Reader.connect(node) for _ in range(50)]
        for client in silent:
            client.write(HALF_A_FRAME)
        await until(lambda: metric(node.bookie, "receive_held_total") > 10, "connections are held")
        load.begin(10)
        await load.wait_for(lambda load: len(load.acknowledged) > 500)
        load.finish()
        await load.wait_for(lambda load: not load.in_flight)
        for client in silent:
            with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):  # With unread bytes, a reset.
                await client.answers(1)
            client.close()
        assert metric(node.bookie, "unfinished_frames_total") == 50
        assert metric(node.bookie, "receive_bytes") == 0
        assert load.refused == []
        assert peak <= 2**20 + ANNOUNCED_BYTES

    peak = 0

    async def measured(node: SimNode) -> None:
        receiving = node.bookie.receiving
        count = receiving.count

        def counted(difference: int) -> None:
            nonlocal peak
            count(difference)
            peak = max(peak, receiving.kept_bytes)

        receiving.count = counted  # type: ignore[method-assign]
        await test(node)

    on_a_node(measured, bookie={"receive_bytes_max": 2**20, "frame_timeout_ms": 1_000})


def test_a_client_that_sends_nothing_is_not_closed_and_keeps_no_receive_memory() -> None:
    async def test(node: SimNode) -> None:
        idle = await Reader.connect(node)
        idle.send(1, range(1))
        await idle.answers(1)
        await asyncio.sleep(60)
        idle.send(1, range(1))
        await idle.answers(1)
        assert metric(node.bookie, "receive_bytes") == metric(node.bookie, "unfinished_frames_total") == 0
        idle.close()

    on_a_node(test, bookie={"frame_timeout_ms": 1_000})


@pytest.mark.parametrize("in_flight", [2_000, 6_000])
def test_thousands_of_adds_in_flight_meet_no_refusal_by_default(in_flight: int) -> None:
    async def test(node: SimNode) -> None:
        slow(node.journal, *node.ledgers, seconds=0.05)
        load = await writer(node, 1)
        load.begin(in_flight)
        await load.wait_for(lambda load: len(load.acknowledged) > 20_000, seconds=600)
        load.finish()
        await load.wait_for(lambda load: not load.in_flight)
        assert load.refused == []
        assert metric(node.bookie, "refused_adds_total") == 0

    by_default(test)


def test_a_writer_without_measure_is_held_by_default_and_its_neighbour_does_not_wait_for_it() -> None:
    async def test(node: SimNode) -> None:
        slow(node.journal, seconds=0.5)
        greedy, modest = await writer(node, 1), await writer(node, 2)
        greedy.begin(30_000)
        greedy.finish()
        await until(lambda: metric(node.bookie, "writers_held_total"), "the greedy one is held")
        modest.begin(10)
        modest.finish()
        await modest.wait_for(lambda load: len(load.acknowledged) == 10)
        assert greedy.in_flight, "its turn comes when most of what it has waiting is written"
        await greedy.wait_for(lambda load: not load.in_flight)
        assert len(greedy.acknowledged) == 30_000
        assert modest.refused == greedy.refused == []
        assert metric(node.bookie, "adds_held_total") == 0

    by_default(test)
