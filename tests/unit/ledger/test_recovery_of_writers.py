"""Recovery against real writers: the former writer notices, and nothing that it acknowledged is lost."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator

import pytest

from magnetar.config.ledger import LedgerConfig
from magnetar.errors import LedgerFencedError, MagnetarError
from magnetar.ledger.client import LedgerClient
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerState
from magnetar.testing.cluster import BookieCluster, small_config
from magnetar.testing.waiting import until
from tests.clusters import new_cluster
from tests.unit.ledger.worlds import QUICK

pytestmark = pytest.mark.virtual_time


@contextlib.asynccontextmanager
async def two_clients(
    bookies: int, config: LedgerConfig = QUICK
) -> AsyncIterator[tuple[BookieCluster, LedgerClient, LedgerClient]]:
    async with (
        new_cluster(bookies, config=small_config(ledger=config)) as cluster,
        cluster.session() as store,
        cluster.session() as other,
        LedgerClient(store, cluster.config, cluster.runtime) as writing,
        LedgerClient(other, cluster.config, cluster.runtime) as recovering,
    ):
        yield cluster, writing, recovering


async def test_writer_that_was_taken_over_is_fenced_and_what_it_was_told_is_there() -> None:
    async with two_clients(3) as (_, writing, recovering):
        writer = await writing.create(ensemble_size=3, ack_quorum=2)
        for number in range(10):
            await writer.add(b"%d" % number)
        reader = await recovering.open(writer.ledger_id)
        assert reader.is_closed
        assert [bytes(entry.payload) async for entry in reader] == [b"%d" % number for number in range(10)]
        with pytest.raises(LedgerFencedError):
            await writer.add(b"too late")
        with pytest.raises(LedgerFencedError):
            await writer.close()


async def test_writer_under_load_loses_nothing_that_was_acknowledged() -> None:
    async with two_clients(4) as (_, writing, recovering):
        writer = await writing.create(ensemble_size=3, ack_quorum=2)
        acked: list[int] = []

        async def write() -> None:
            while True:
                adds = [writer.enqueue(b"x" * 100) for _ in range(50)]
                done = await asyncio.gather(*adds, return_exceptions=True)
                acked.extend(entry_id for entry_id in done if isinstance(entry_id, int))
                if any(isinstance(entry_id, MagnetarError) for entry_id in done):
                    return

        load = asyncio.ensure_future(write())
        await until(lambda: len(acked) >= 200, "some entries are acknowledged")
        reader = await recovering.open(writer.ledger_id)
        await load
        assert reader.last_confirmed >= max(acked)
        assert [entry.entry_id async for entry in reader] == list(range(reader.last_confirmed + 1))
        assert isinstance(writer.failure, LedgerFencedError)


async def test_ensemble_change_of_a_writer_that_is_being_recovered_fails() -> None:
    """The bookies that recovery could reach were not enough; the mark alone keeps the old writer from moving on."""
    impatient = dataclasses.replace(QUICK, recovery_timeout_ms=2_500)
    async with two_clients(5, impatient) as (cluster, writing, recovering):
        writer = await writing.create(ensemble_size=3, ack_quorum=3)
        await writer.add(b"0")
        ensemble = writer.metadata.fragments[-1].ensemble
        stored = await writing.context.ledgers.read(writer.ledger_id)
        for bookie in ensemble:
            cluster.hang(bookie)
        with pytest.raises(MagnetarError):
            await recovering.recover(writer.ledger_id)
        assert (await recovering.metadata(writer.ledger_id)).state is LedgerState.IN_RECOVERY
        for bookie in ensemble:
            cluster.wake(bookie)
        await cluster.kill(ensemble[0])
        with pytest.raises(LedgerFencedError):
            await writer.add(b"1")
        found = await recovering.metadata(writer.ledger_id)
        assert found.fragments == stored.value.fragments


async def test_abandoned_writer_in_the_same_process_does_not_disturb_the_recovery() -> None:
    async with two_clients(3) as (_, client, _other):
        writer = await client.create(ensemble_size=3, ack_quorum=2)
        for number in range(5):
            await writer.add(b"%d" % number)
        closed = await client.recover(writer.ledger_id)
        assert (closed.state, closed.last_entry_id) == (LedgerState.CLOSED, 4)
        await writer.release()
