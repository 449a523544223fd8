"""The judge of the chaos runs is judged too: it must find every kind of loss."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import replace

import pytest_asyncio

from magnetar.ids import LedgerId
from magnetar.ledger.client import LedgerClient
from magnetar.testing.cluster import BookieCluster
from workloads.ledger_check import Tally, count_copies, read_back
from workloads.ledger_load import message, message_number
from workloads.ledger_writer import Stream


class Ledgers:
    """Ledgers that are written as a test wants them, and the stream as writers would have reported it."""

    def __init__(self, cluster: BookieCluster, client: LedgerClient) -> None:
        self.stream = Stream()
        self.client = client
        self._cluster = cluster

    async def write(self, payloads: Iterable[bytes], *, first_message: int = 0, acknowledged: int | None = None) -> int:
        async with await self.client.create(ensemble_size=3, ack_quorum=2) as writer:
            for payload in payloads:
                await writer.add(payload)
        self.stream.take(f"ledger {writer.ledger_id} {first_message}")
        last = writer.last_confirmed if acknowledged is None else acknowledged - 1
        self.stream.take(f"acked {writer.ledger_id} 0 {last} 1.5")
        return writer.ledger_id

    async def name_others(self, ledger_id: int) -> None:
        """Has the metadata name two bookies that have nothing of the ledger."""
        stored = await self.client.context.ledgers.read(LedgerId(ledger_id))
        (fragment,) = stored.value.fragments
        others = [bookie for bookie in self._cluster.bookie_ids if bookie not in fragment.ensemble]
        wrong = replace(fragment, ensemble=(fragment.ensemble[0], *others))
        await self.client.context.ledgers.update(replace(stored.value, fragments=(wrong,)), stored.version)

    async def judge(self) -> Tally:
        tally = Tally()
        await read_back(self.client, self.stream, tally)
        await count_copies(self.client, self.stream, tally)
        return tally


@pytest_asyncio.fixture
async def ledgers() -> AsyncIterator[Ledgers]:
    async with BookieCluster(5) as cluster, LedgerClient(cluster.store, cluster.config, cluster.runtime) as client:
        yield Ledgers(cluster, client)


def messages(first: int, end: int) -> list[bytes]:
    return [message(number) for number in range(first, end)]


async def test_what_was_acknowledged_and_is_there_once_in_order_passes(ledgers: Ledgers) -> None:
    await ledgers.write(messages(0, 10))
    await ledgers.write(messages(10, 30), first_message=10, acknowledged=15)  # The other five: kept by a recovery.
    tally = await ledgers.judge()
    assert tally.passed, tally
    assert (tally.acknowledged, tally.read, tally.ledgers) == (25, 30, 2)


async def test_an_acknowledged_entry_that_is_in_no_ledger_is_lost(ledgers: Ledgers) -> None:
    await ledgers.write(messages(0, 10), acknowledged=12)
    tally = await ledgers.judge()
    assert tally.lost == 2
    assert not tally.passed


async def test_an_entry_that_its_ledger_lost_is_lost_also_if_it_was_written_again_elsewhere(ledgers: Ledgers) -> None:
    await ledgers.write(messages(0, 10), acknowledged=12)
    await ledgers.write(messages(10, 20), first_message=10)
    tally = await ledgers.judge()
    assert (tally.lost, tally.duplicated, tally.out_of_order) == (2, 0, 0)


async def test_a_message_that_is_there_twice_is_duplicated(ledgers: Ledgers) -> None:
    await ledgers.write(messages(0, 10))
    await ledgers.write(messages(9, 20), first_message=9)
    tally = await ledgers.judge()
    assert tally.duplicated == 1
    assert not tally.passed


async def test_messages_that_have_changed_places_are_out_of_order_and_not_where_they_were_acknowledged(
    ledgers: Ledgers,
) -> None:
    await ledgers.write([message(0), message(2), message(1), message(3)])
    tally = await ledgers.judge()
    assert (tally.out_of_order, tally.lost) == (3, 2)


async def test_a_changed_byte_is_damage_and_the_entry_is_lost(ledgers: Ledgers) -> None:
    await ledgers.write([message(0), message(1)[:-1] + b"!"])
    tally = await ledgers.judge()
    assert (tally.damaged, tally.lost) == (1, 1)


async def test_an_entry_on_fewer_bookies_than_the_ack_quorum_is_found(ledgers: Ledgers) -> None:
    await ledgers.name_others(await ledgers.write(messages(0, 10)))
    tally = await ledgers.judge()
    assert (tally.lost, tally.too_few_copies) == (0, 10)
    assert not tally.passed


async def test_an_entry_on_no_bookie_is_lost_and_the_others_are_read_all_the_same(ledgers: Ledgers) -> None:
    ledger_id = await ledgers.write(messages(0, 10))
    stored = await ledgers.client.context.ledgers.read(LedgerId(ledger_id))
    longer = replace(stored.value, last_entry_id=11)
    await ledgers.client.context.ledgers.update(longer, stored.version)
    ledgers.stream.take(f"acked {ledger_id} 10 11 2.5")
    tally = await ledgers.judge()
    assert (tally.read, tally.lost) == (10, 2)


def test_acknowledgements_with_a_gap_are_noted() -> None:
    stream = Stream()
    stream.take("ledger 7 0")
    stream.take("acked 7 0 4 1.0")
    stream.take("acked 7 6 9 1.5")
    assert len(stream.disorders) == 1


def test_a_deposed_writer_counts_for_its_own_ledger_and_not_as_a_stall() -> None:
    stream = Stream()
    for line in ("ledger 7 0", "acked 7 0 4 1.0", "ledger 8 5", "acked 8 0 0 2.0", "acked 7 5 9 9.0"):
        stream.take(line)
    assert [written.acknowledged for written in stream.ledgers] == [10, 1]
    assert stream.longest_stall_s == 0.0


def test_every_message_is_known_by_its_bytes() -> None:
    assert [message_number(message(number)) for number in range(50)] == list(range(50))
    assert message_number(b"") is None
    assert message_number(message(5) + b"\0") is None
