"""The table of ledgers under its bound: what is let go, what stays, and that no fence is forgotten with it."""

from __future__ import annotations

import asyncio
import dataclasses
import gc

import pytest

from magnetar.bookie.ledgers import Fencing, Ledger, LedgerTable
from magnetar.bookie.requests import wait_for_lac
from magnetar.storage.index.location_index import IndexBatch
from magnetar.storage.journal.format import RecordKind
from magnetar.storage.ledger_flags import NO_FLAGS, LedgerFlags
from magnetar.storage.ledger_storage import LedgerStorage
from magnetar.testing.waiting import until
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.frames import VERSION_MAX, WORD, Flag, Operation, PacketHeader
from magnetar.wire.bookkeeper.hot_path import scan_adds
from tests.unit.bookie.test_adds import FakeConnection, Setup, add
from tests.unit.storage.samples import KEY, World

OTHERS = range(100, 140)


class Flags:
    """Storage, as far as the table needs it; loads can be made to wait."""

    def __init__(self) -> None:
        self.known: dict[int, LedgerFlags] = {}
        self.loads = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def get_flags(self, ledger_id: int) -> LedgerFlags | None:
        self.loads += 1
        await self.may_answer.wait()
        return self.known.get(ledger_id)

    def set_flags(self, ledger_id: int, flags: LedgerFlags) -> None:
        self.known[ledger_id] = dataclasses.replace(flags, deleted_at_ms=None)


class OpenJournal:
    """Keeps fences until the test makes them durable."""

    def __init__(self) -> None:
        self.tokens: list[asyncio.Future[None]] = []
        self.may_submit = asyncio.Event()
        self.may_submit.set()

    async def wait_for_room(self) -> None:
        await self.may_submit.wait()

    def submit(self, kind: RecordKind, chunks: object, token: object) -> int:
        assert kind is RecordKind.FENCE
        assert isinstance(token, asyncio.Future)
        self.tokens.append(token)
        return len(self.tokens)

    def sync(self) -> None:
        for token in self.tokens:
            token.set_result(None)
        self.tokens.clear()


async def crowd_out(table: LedgerTable) -> None:
    """More others than the table holds, three times around the clock."""
    for _ in range(3):
        for ledger_id in OTHERS:
            await table.load(ledger_id)


# --- contexts ---------------------------------------------------------------------------------------------------------


async def test_flag_bits_without_meaning_are_ignored_and_make_no_context_of_their_own() -> None:
    flags = Flags()
    table = LedgerTable(flags)
    ledger = await table.load(7)
    for bits in range(0, 2**16, 5):
        context = WORD.pack(PacketHeader(VERSION_MAX, Operation.ADD, bits).word()) + KEY + (7).to_bytes(8, "big")
        assert table.admit(context) == (ledger, Code.EOK)
        assert (table.find_context(context) is not None) == (bits <= Flag.ALL)
    assert len(ledger.contexts) <= Flag.ALL + 1


# --- the bound --------------------------------------------------------------------------------------------------------


async def test_the_table_keeps_no_more_than_its_limit_and_counts_what_it_lets_go() -> None:
    table = LedgerTable(Flags(), 10)
    for ledger_id in range(100):
        await table.load(ledger_id)
    assert len(table) == 10
    assert table.evictions == 90
    assert table.find(0) is None
    assert table.find(99) is not None


async def test_nothing_of_a_ledger_that_was_let_go_stays_in_memory() -> None:
    setup, connection = Setup(), FakeConnection()
    setup.table.ledgers_max = 20
    for ledger_id in range(200):
        await setup.send(connection, add(ledger_id, 0))
        setup.sync()
    assert len(setup.table) <= 20 + 1
    assert len(setup.table._contexts) <= 20 + 1
    assert len(setup.table._let_go) == 0
    gc.collect()
    ledgers = [found for found in gc.get_objects() if isinstance(found, Ledger)]
    assert len(ledgers) <= 20 + 1


async def test_a_ledger_that_is_written_to_stays_and_an_idle_one_goes() -> None:
    table = LedgerTable(Flags(), 10)
    busy, idle = await table.load(1), await table.load(2)
    del idle
    for number, ledger_id in enumerate(OTHERS):
        busy.move_lac(number, 0)
        await table.load(ledger_id)
    assert table.find(1) is busy
    assert table.find(2) is None


async def test_what_somebody_waits_at_or_is_being_fenced_stays() -> None:
    journal = OpenJournal()
    table = LedgerTable(Flags(), 4)
    fencing = asyncio.ensure_future(Fencing(table, journal).fence(1, KEY))
    polling = asyncio.ensure_future(wait_for_lac(await table.load(2), 7, 60_000))
    await until(lambda: journal.tokens and (ledger := table.find(2)) is not None and ledger.waiters, "both wait")
    await crowd_out(table)
    assert table.find(1) is not None
    assert table.find(2) is not None
    journal.sync()
    assert await fencing is Code.EOK
    polling.cancel()
    await asyncio.wait([polling])
    await crowd_out(table)
    assert table.find(1) is None
    assert table.find(2) is None


async def test_a_writer_whose_ledger_was_let_go_goes_on_with_its_key_and_no_other() -> None:
    setup, connection = Setup(), FakeConnection()
    setup.table.ledgers_max = 4
    await setup.send(connection, add(1, 0))
    await crowd_out(setup.table)
    assert setup.table.find(1) is None
    context = scan_adds(add(1, 0), 0, len(add(1, 0))).contexts[0]
    assert setup.table.find_context(context) is None, "it would pass without a check"
    await setup.send(connection, add(1, 1))
    await setup.send(connection, add(1, 2, key=b"x" * 20))
    setup.sync()
    assert sorted(connection.answers()) == [(1, 0, Code.EOK), (1, 1, Code.EOK), (1, 2, Code.EUA)]


# --- fences -----------------------------------------------------------------------------------------------------------


@pytest.fixture
async def storage() -> LedgerStorage:
    return await World().open()


@pytest.mark.parametrize("when", ["unflushed", "while it is flushed", "flushed"])
async def test_a_fence_is_found_again_after_its_ledger_was_let_go(when: str, storage: LedgerStorage) -> None:
    """A plain add that comes then must be refused, though the fence may be in no index yet."""
    table = LedgerTable(storage, 4)
    setup, connection = Setup(), FakeConnection()
    setup.adds._table = table
    await setup.send(connection, add(1, 0, key=KEY))
    table.fence(await table.load(1), KEY)
    flushing = asyncio.ensure_future(storage.flush() if when != "unflushed" else asyncio.sleep(0))
    if when == "flushed":
        await flushing
    await crowd_out(table)
    assert table.find(1) is None
    await setup.send(connection, add(1, 1, key=KEY))
    assert connection.answers() == [(1, 1, Code.EFENCED)]
    await flushing
    await storage.aclose()


async def test_a_second_fence_waits_for_the_first_though_its_ledger_was_let_go_meanwhile() -> None:
    """The first request holds the ledger and waits for room in the journal: nothing shows that the ledger is busy."""
    journal = OpenJournal()
    table = LedgerTable(Flags(), 4)
    fencing = Fencing(table, journal)
    journal.may_submit.clear()
    first = asyncio.ensure_future(fencing.fence(1, KEY))
    await until(lambda: table.find(1) is not None, "loaded")
    await crowd_out(table)
    assert table.find(1) is None
    journal.may_submit.set()
    await until(lambda: journal.tokens, "the fence is written")
    await crowd_out(table)
    first.cancel()
    await asyncio.wait([first])
    del first
    gc.collect()  # Only the table refers to the ledger now.
    second = asyncio.ensure_future(fencing.fence(1, KEY))
    await asyncio.wait([second], timeout=0.05)
    assert not second.done()
    journal.sync()
    assert await second is Code.EOK


async def test_who_holds_a_ledger_that_was_let_go_cannot_undo_a_fence_that_came_meanwhile() -> None:
    flags = Flags()
    table = LedgerTable(flags, 4)
    held = await table.load(1)
    await crowd_out(table)
    assert table.find(1) is None
    table.fence(await table.load(1), KEY)
    await crowd_out(table)
    table.change(held, dataclasses.replace(held.flags, explicit_lac=b"lac"))
    assert flags.known[1].fenced
    assert (await table.load(1)) is held


async def test_there_is_one_ledger_of_an_id_however_many_load_it() -> None:
    flags = Flags()
    table = LedgerTable(flags, 4)
    flags.may_answer.clear()
    loads = [asyncio.ensure_future(table.load(1)) for _ in range(3)]
    await until(lambda: flags.loads, "loading")
    flags.may_answer.set()
    found = await asyncio.gather(*loads)
    await crowd_out(table)
    found.append(await table.load(1))
    assert [ledger is found[0] for ledger in found] == [True] * 4
    assert flags.loads == 1 + len(OTHERS) * 3


# --- deletion ---------------------------------------------------------------------------------------------------------


async def fenced_and_deleted(storage: LedgerStorage, table: LedgerTable, ledger_id: int) -> Ledger:
    """Fenced in a former life; still held by a request that was loading it when it was deleted."""
    storage.set_flags(ledger_id, LedgerFlags(master_key=KEY, fenced=True))
    await storage.flush()
    held = await table.load(ledger_id)
    await storage.delete_ledger(ledger_id)
    table.forget(ledger_id)
    assert storage.tombstones.count == 1
    return held


async def test_a_tombstone_is_counted_once_though_a_request_held_its_ledger_at_the_deletion(
    storage: LedgerStorage,
) -> None:
    table = LedgerTable(storage, 4)
    held = await fenced_and_deleted(storage, table, 1)
    table.change(held, dataclasses.replace(held.flags, explicit_lac=b"lac"))
    assert storage.tombstones.count == 0, "the ledger is in use again"
    await storage.flush()
    await storage.delete_ledger(1)
    assert storage.tombstones.count == 1
    await storage.aclose()


async def test_a_fence_that_came_during_the_deletion_is_neither_lost_nor_a_tombstone(
    storage: LedgerStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = LedgerTable(storage, 4)
    ledger = await table.load(1)
    storage.set_flags(1, LedgerFlags(master_key=KEY))
    await storage.flush()
    apply = storage.index.apply

    async def fence_meanwhile(batch: IndexBatch) -> None:
        ledger.fencing = asyncio.get_running_loop().create_future()
        table.fence(ledger, KEY)
        ledger.fencing.set_result(None)
        await apply(batch)

    monkeypatch.setattr(storage.index, "apply", fence_meanwhile)
    await storage.delete_ledger(1)
    table.forget(1)
    assert storage.tombstones.count == 0
    assert (await table.load(1)).flags.fenced
    table.change(ledger, dataclasses.replace(ledger.flags, explicit_lac=b"lac"))
    assert storage.tombstones.count == 0
    await storage.aclose()


async def test_a_ledger_that_was_deleted_while_it_was_held_learns_its_key_anew(storage: LedgerStorage) -> None:
    table = LedgerTable(storage, 4)
    held = await table.load(1)
    table.learn_key(held, KEY)
    await storage.flush()
    await storage.delete_ledger(1)
    table.forget(1)
    assert held.flags == NO_FLAGS
    table.learn_key(held, KEY)
    assert (await storage.get_flags(1) or NO_FLAGS).master_key == KEY
    await storage.aclose()


async def test_a_load_that_a_deletion_overtakes_sees_the_tombstone(storage: LedgerStorage) -> None:
    storage.set_flags(1, LedgerFlags(master_key=KEY, fenced=True))
    await storage.flush()
    table = LedgerTable(storage, 4)
    loading = asyncio.ensure_future(table.load(1))
    await storage.delete_ledger(1)
    table.forget(1)
    ledger = await loading
    table.change(ledger, dataclasses.replace(ledger.flags, explicit_lac=b"lac"))
    assert storage.tombstones.count == 0
    assert (await table.load(1)) is ledger
    await storage.aclose()
