"""Closing a ledger when others touch its metadata too, or answers get lost."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from magnetar.errors import LedgerClosedError, LedgerFencedError, MetadataUnavailableError
from magnetar.ids import BookieId, EntryId, LedgerId
from magnetar.ledger.metadata import closed
from magnetar.metadata.bookkeeper.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from magnetar.runtime.backoff import Backoff
from magnetar.testing.waiting import until
from tests.unit.ledger.writing import bodies, writer_world

pytestmark = pytest.mark.virtual_time

OPEN = LedgerMetadata(
    ledger_id=LedgerId(7),
    ensemble_size=1,
    write_quorum=1,
    ack_quorum=1,
    fragments=(Fragment(EntryId(0), (BookieId("A"),)),),
)


@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.IN_RECOVERY])
def test_ledger_that_is_not_closed_is_closed_at_the_last_confirmed_entry(state: LedgerState) -> None:
    found = closed(dataclasses.replace(OPEN, state=state), 9, 100)
    assert found is not None
    assert (found.state, found.last_entry_id, found.length) == (LedgerState.CLOSED, 9, 100)


def test_ledger_that_is_closed_at_the_same_end_is_left_so() -> None:
    done = closed(OPEN, 9, 100)
    assert done is not None
    assert closed(done, 9, 100) is None


@pytest.mark.parametrize(("last", "length"), [(8, 100), (10, 100), (9, 101)])
def test_ledger_that_is_closed_at_another_end_was_taken_over(last: int, length: int) -> None:
    done = closed(OPEN, last, length)
    assert done is not None
    with pytest.raises(LedgerFencedError, match=f"closed it after entry {last}"):
        closed(done, 9, 100)


async def test_close_keeps_a_bookie_that_was_swapped_meanwhile() -> None:
    async with writer_world(4) as world:
        writer = await world.client.create(ensemble_size=1)
        await writer.add(b"entry-0")
        other = BookieId(next(b for b in world.cluster.bookie_ids if b not in writer.metadata.fragments[0].ensemble))
        await world.ledgers.change(
            writer.ledger_id, lambda m: dataclasses.replace(m, fragments=(Fragment(EntryId(0), (other,)),))
        )
        await writer.close()
        stored = await world.client.metadata(writer.ledger_id)
        assert (stored.state, stored.last_entry_id) == (LedgerState.CLOSED, 0)
        assert stored.fragments[0].ensemble == (other,)


async def test_close_wins_over_a_recovery_that_has_not_fenced_yet() -> None:
    async with writer_world(3) as world:
        writer = await world.client.create()
        await asyncio.gather(*[writer.add(body) for body in bodies(0, 5)])
        await world.ledgers.change(writer.ledger_id, lambda m: dataclasses.replace(m, state=LedgerState.IN_RECOVERY))
        await writer.close()
        assert await world.payloads(writer) == bodies(0, 5)


async def test_close_after_a_recovery_that_found_the_same_end_is_no_error() -> None:
    async with writer_world(3) as world:
        writer = await world.client.create()
        await asyncio.gather(*[writer.add(body) for body in bodies(0, 5)])
        assert (await world.client.recover(writer.ledger_id)).last_entry_id == 4
        await writer.close()
        assert writer.metadata.last_entry_id == 4


async def test_close_of_a_ledger_that_ends_elsewhere_fails() -> None:
    async with writer_world(3) as world:
        writer = await world.client.create()
        await writer.add(b"entry-0")
        await world.ledgers.change(
            writer.ledger_id,
            lambda m: dataclasses.replace(m, state=LedgerState.CLOSED, last_entry_id=EntryId(3), length=40),
        )
        with pytest.raises(LedgerFencedError, match="closed it after entry 3"):
            await writer.close()
        assert (await world.client.metadata(writer.ledger_id)).last_entry_id == 3


@pytest.mark.parametrize("was_done", [True, False])
async def test_close_whose_answer_is_lost_is_resolved_by_looking(was_done: bool) -> None:
    async with writer_world(3) as world:
        writer = await world.client.create()
        await writer.add(b"entry-0")
        world.ledgers.lost = [was_done]
        await writer.close()
        found = await world.ledgers.read(writer.ledger_id)
        assert found.value.is_closed
        assert found.version == 1


async def test_close_that_failed_may_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backoff, "next_s", lambda _: 0.0)
    async with writer_world(3) as world:
        writer = await world.client.create()
        await writer.add(b"entry-0")
        world.ledgers.errors = [MetadataUnavailableError("away")] * 12
        with pytest.raises(MetadataUnavailableError):
            await writer.close()
        assert not (await world.client.metadata(writer.ledger_id)).is_closed
        await writer.close()
        assert (await world.client.metadata(writer.ledger_id)).last_entry_id == 0


async def test_cancelled_close_goes_on() -> None:
    async with writer_world(3) as world:
        writer = await world.client.create()
        world.ledgers.gate.clear()
        closing = asyncio.ensure_future(writer.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        world.ledgers.gate.set()
        await writer.close()
        assert (await world.ledgers.read(writer.ledger_id)).version == 1


async def test_close_says_that_the_writer_was_released_meanwhile() -> None:
    async with writer_world(3) as world:
        writer = await world.client.create()
        await writer.add(b"entry-0")
        for node in world.cluster.nodes:
            node.hang()
        add = writer.enqueue(b"entry-1")
        closing = asyncio.ensure_future(writer.close())
        await until(lambda: writer._quiet is not None, "it waits for the entry")
        await writer.release()
        with pytest.raises(LedgerClosedError, match="released"):
            await closing
        with pytest.raises(LedgerClosedError):
            await add
        for node in world.cluster.nodes:
            node.wake()


async def test_close_that_is_cancelled_when_the_writer_is_released_stays_cancelled() -> None:
    async with writer_world(3) as world:
        writer = await world.client.create()
        for node in world.cluster.nodes:
            node.hang()
        add = writer.enqueue(b"entry-0")
        closing = asyncio.ensure_future(writer.close())
        await until(lambda: writer._quiet is not None, "it waits for the entry")
        releasing = asyncio.ensure_future(writer.release())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing, releasing, add])
        assert closing.cancelled()
        assert add.exception() is not None
        for node in world.cluster.nodes:
            node.wake()
