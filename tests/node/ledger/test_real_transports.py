"""Writers on bookies with real files: through sockets, and in one process without them, as in `magnetar standalone`.

This is what the simulated bookies of tests/unit/ledger cannot show: buffers of the system, and trouble of one instant.
The contract of both transports is in the channel suite (tests/node/ledger/channels).
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from magnetar.errors import EnsembleChangesExceededError
from magnetar.ledger.channels.local_transport import LocalTransport
from magnetar.ledger.writing.advanced_writer import AdvancedLedgerWriter
from magnetar.ledger.writing.writer import LedgerWriter
from tests.unit.ledger.writing import add_all, assert_replicated, bodies, ensembles, writer_world

ENTRY = bytes(12_000)


@pytest.fixture(params=[False, True], ids=["sockets", "in process"])
def in_process(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


async def test_bookies_of_the_same_process_are_written_to_without_a_socket(in_process: bool) -> None:
    async with writer_world(3, in_process=in_process) as world, await world.client.create(ack_quorum=3) as writer:
        await writer.add(b"entry-0")
        channels: list[Any] = [slot.channel for slot in writer._engine.slots]
        used = [isinstance(channel._v2._transport, LocalTransport) for channel in channels]
        assert used == [in_process] * 3


async def test_two_bookies_that_fail_at_once_are_one_change(in_process: bool) -> None:
    async with writer_world(5, in_process=in_process) as world:
        async with await world.client.create(ack_quorum=2) as writer:
            await add_all(writer, 0, 4)
            killed = ensembles(writer)[0][1][:2]
            adds = [asyncio.ensure_future(writer.add(body)) for body in bodies(4, 20)]
            await asyncio.gather(*[world.cluster.kill(bookie) for bookie in killed])
            await asyncio.gather(*adds)
            assert writer.statistics().ensemble_changes == 1
            assert not [bookie for bookie in killed if bookie in ensembles(writer)[-1][1]]
        await assert_replicated(world, writer, 24)


async def test_changes_are_limited_in_number_and_time(in_process: bool) -> None:
    async with writer_world(
        5, in_process=in_process, ensemble_changes_max=2, ensemble_changes_window_ms=3_600_000, add_timeout_ms=400
    ) as world:
        writer = await world.client.create(ack_quorum=3)
        await add_all(writer, 0, 1)
        for number in range(2):
            await world.cluster.restart(ensembles(writer)[-1][1][0])
            hung = ensembles(writer)[-1][1][1]
            world.cluster.hang(hung)
            await add_all(writer, 1 + number, 1)
            world.cluster.wake(hung)
        world.cluster.hang(ensembles(writer)[-1][1][1])
        with pytest.raises(EnsembleChangesExceededError, match="replaced 2 times"):
            await writer.add(b"one too many")
        await writer.close()
        assert writer.statistics().ensemble_changes == 2
        assert (await world.client.metadata(writer.ledger_id)).last_entry_id == 2


async def test_turn_that_comes_in_the_moment_of_its_time_out_counts(in_process: bool) -> None:
    async with writer_world(3, in_process=in_process) as world:
        wait_s = 0.1
        writer = AdvancedLedgerWriter(await world.client.create(), waiting_max=10, wait_s=wait_s)
        loop = asyncio.get_running_loop()
        early = asyncio.ensure_future(writer.add(1, b"entry-1"))
        await asyncio.sleep(0)
        over = loop.time() + wait_s
        first = asyncio.ensure_future(writer.add(0, b"entry-0"))
        while loop.time() <= over:  # A busy loop: when it continues, both are due.
            pass
        assert await asyncio.gather(first, early) == [0, 1]
        await writer.close()
        assert await world.payloads(writer.writer) == bodies(0, 2)


PATIENT: dict[str, Any] = {"add_timeout_ms": 60_000, "slow_bookie_wait_ms": 60_000}
"""For tests about room: they do not judge how quickly a busy machine's disk takes megabytes."""


async def add_in_bursts(writer: LedgerWriter, entries: int) -> list[int | BaseException]:
    adds = []
    for _ in range(2):
        adds += [asyncio.ensure_future(writer.add(ENTRY)) for _ in range(entries)]
        for _ in range(4):  # The first burst is with the transport, which asks to wait, when the second comes.
            await asyncio.sleep(0)
    return await asyncio.gather(*adds, return_exceptions=True)


async def test_bursts_of_deferred_adds_are_no_reason_to_give_healthy_bookies_up(in_process: bool) -> None:
    async with (
        writer_world(3, in_process=in_process, channel_unsent_bytes_max=2**20, **PATIENT) as world,
        await world.client.create(ack_quorum=2, deferred_sync=True) as writer,
    ):
        await writer.add(b"connected")
        burst = 1_200  # More than the system takes for a bookie that has not read yet.
        assert await add_in_bursts(writer, burst) == list(range(1, 2 * burst + 1))


async def test_bursts_of_several_deferred_writers_at_once_are_none_either(in_process: bool) -> None:
    async with writer_world(
        3, in_process=in_process, channel_unsent_bytes_max=2**20, requests_in_flight_max=200, **PATIENT
    ) as world:
        writers = [await world.client.create(ack_quorum=2, deferred_sync=True) for _ in range(4)]
        await asyncio.gather(*[writer.add(b"connected") for writer in writers])
        for added in await asyncio.gather(*[add_in_bursts(writer, 300) for writer in writers]):
            assert added == list(range(1, 601))
        for writer in writers:
            await writer.close()
