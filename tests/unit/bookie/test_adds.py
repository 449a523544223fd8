"""Adds with a journal whose disk answers when the test says so."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from magnetar.bookie.adds import AddLimits, Adds
from magnetar.bookie.admission import Gate
from magnetar.bookie.connection import Connection
from magnetar.bookie.ledgers import LedgerTable
from magnetar.bookie.read_only import ReadOnlyReason, ReadOnlySwitch
from magnetar.errors import IndexDamagedError, JournalFailedError
from magnetar.runtime.disk import Buffer
from magnetar.storage.frames import ENTRY_OFFSET
from magnetar.storage.journal.format import RecordKind
from magnetar.storage.ledger_flags import LedgerFlags
from magnetar.storage.write_cache import WriteCache
from magnetar.testing.waiting import until
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.digests import DigestType, entry_digest
from magnetar.wire.bookkeeper.ends import decode_response
from magnetar.wire.bookkeeper.frames import Flag
from magnetar.wire.bookkeeper.hot_path import AddEncoder, scan_add_responses, scan_adds
from magnetar.wire.bookkeeper.messages import V3, AddEntry, AddResponse

KEY, OTHER_KEY = b"k" * 20, b"o" * 20
DIGEST = entry_digest(DigestType.CRC32C)


class SlowJournal:
    """Keeps what was submitted until the test makes it durable."""

    def __init__(self) -> None:
        self.records_max = 10_000
        self.failure: JournalFailedError | None = None
        self.chunks: list[bytes] = []
        self.tokens: list[object] = []

    @property
    def has_room(self) -> bool:
        return len(self.tokens) < self.records_max

    def submit(self, kind: RecordKind, chunks: Sequence[Buffer], token: object) -> int:
        assert kind is RecordKind.ADDS
        if self.failure is not None:
            raise self.failure
        assert self.has_room, "who finds no room waits"
        self.chunks += [bytes(chunk) for chunk in chunks]
        self.tokens.append(token)
        return len(self.tokens)

    def entries(self) -> list[tuple[bytes, int]]:
        runs = [scan_adds(chunk, 0, len(chunk)) for chunk in self.chunks]
        return [(run.contexts[0][4:24], entry) for run in runs for entry in run.entry_ids]


class FakeConnection(Connection):
    """The part of a connection that adds see; nothing is on a socket."""

    def __init__(self) -> None:
        self.sent = b""
        self.held = 0
        self.aborted = False

    def send(self, parts: Sequence[Buffer], answers: int = 1) -> None:
        self.sent += b"".join(parts)

    def hold(self, reason: str) -> None:
        self.held += 1

    def release(self, reason: str) -> None:
        self.held -= 1

    def abort(self) -> None:
        self.aborted = True

    def answers(self) -> list[tuple[int, int, Code]]:
        run = scan_add_responses(self.sent, 0, len(self.sent))
        return [
            (ledger, entry, Code(code))
            for ledger, entry, code in zip(run.ledger_ids, run.entry_ids, run.codes, strict=True)
        ]


class Setup:
    def __init__(
        self,
        flags: dict[int, LedgerFlags | Exception] | None = None,
        *,
        wait_s: float = 5.0,
        ledgers_max: int = 50_000,
        **limits: int,
    ) -> None:
        self.flags = flags or {}
        self.table = LedgerTable(self, ledgers_max)
        self.cache = WriteCache()
        self.journal = SlowJournal()
        self.cache_gate = Gate("write cache")
        quota = AddLimits(limits.get("in_progress_max", 10_000), limits.get("per_connection_max", 10_000), wait_s)
        self.switch = ReadOnlySwitch()
        self.adds = Adds(self.table, self, self.journal, self.cache_gate, self.switch, quota, lambda: 1)

    has_room = True

    async def get_flags(self, ledger_id: int) -> LedgerFlags | None:
        found = self.flags.get(ledger_id)
        if isinstance(found, Exception):
            raise found
        return found

    def set_flags(self, ledger_id: int, flags: LedgerFlags) -> None:
        self.flags[ledger_id] = flags

    def add_run(
        self, ledger_id: int, chunk: bytes, entry_ids: list[int], offsets: list[int], lengths: list[int]
    ) -> None:
        self.cache.put_run(ledger_id, chunk, entry_ids, offsets, lengths)

    def add_many(
        self, ledger_ids: list[int], chunk: bytes, entry_ids: list[int], offsets: list[int], lengths: list[int]
    ) -> None:
        self.cache.put_many(ledger_ids, chunk, entry_ids, offsets, lengths)

    async def send(self, connection: FakeConnection, frames: bytes, *, seconds: float = 5.0) -> None:
        """Offers the run until it is taken, as a connection does."""
        start = 0
        while start < len(frames):
            run = scan_adds(frames, start, len(frames))
            assert run.end == len(frames)
            taken = self.adds.on_run(connection, frames, start, run)
            if taken == len(run.entry_ids):
                break
            start = run.offsets[taken] - ENTRY_OFFSET
            assert connection.held
            await until(lambda: not connection.held, "released", seconds=seconds)

    def sync(self) -> None:
        tokens, self.journal.tokens = self.journal.tokens, []
        for token in tokens:
            assert isinstance(token, list)
            self.adds.on_durable(token)
        self.adds.on_group_written()


def add(ledger_id: int, entry_id: int, payload: bytes = b"data", *, key: bytes = KEY, flags: int = Flag.NONE) -> bytes:
    return AddEncoder(ledger_id, key, DIGEST, flags).header(entry_id, entry_id - 1, 1, payload) + payload


async def test_an_add_is_answered_only_after_the_journal_has_synced_it() -> None:
    setup, connection = Setup(), FakeConnection()
    await setup.send(connection, add(1, 0) + add(1, 1))
    assert connection.answers() == []
    setup.sync()
    assert connection.answers() == [(1, 0, Code.EOK), (1, 1, Code.EOK)]
    assert setup.adds.in_progress == 0


async def test_what_is_added_can_be_read_before_it_is_durable() -> None:
    setup, connection = Setup(), FakeConnection()
    await setup.send(connection, add(1, 0, b"first") + add(2, 7, b"second") + add(1, 1, b"third"))
    for ledger_id, entry_id, payload in ((1, 0, b"first"), (2, 7, b"second"), (1, 1, b"third")):
        body = setup.cache.get(ledger_id, entry_id)
        assert body is not None
        assert DIGEST.open(ledger_id, entry_id, bytes(body)).payload == payload


async def test_a_run_from_the_middle_of_a_buffer_is_stored_as_it_stands_there() -> None:
    setup, connection = Setup(), FakeConnection()
    await setup.table.load(3)
    buffer = b"x" * 100 + add(3, 0, b"alpha") + add(3, 1, b"beta") + b"rest"
    run = scan_adds(buffer, 100, len(buffer))
    assert setup.adds.on_run(connection, buffer, 100, run)
    assert setup.adds.on_run(connection, buffer, 100, run)  # Known now: the fast way.
    for entry_id, payload in enumerate((b"alpha", b"beta")):
        body = setup.cache.get(3, entry_id)
        assert body is not None
        assert DIGEST.open(3, entry_id, bytes(body)).payload == payload


async def test_a_run_of_many_known_ledgers_is_one_record_and_is_answered_in_its_order() -> None:
    setup, connection = Setup(), FakeConnection()
    for ledger_id in (1, 2, 3):
        await setup.send(connection, add(ledger_id, 0))
    setup.sync()
    before = len(setup.journal.chunks)
    sent = [(1, 1), (2, 1), (2, 2), (1, 2), (3, 1), (1, 3)]
    buffer = b"x" * 50 + b"".join(add(*entry, b"%d in %d" % entry) for entry in sent)
    moved: list[int] = []
    for ledger_id in (1, 2, 3):
        ledger = setup.table.find(ledger_id)
        assert ledger is not None
        ledger.waiters.append(lambda ledger=ledger: moved.append(ledger.id))  # type: ignore[misc]
    connection.sent = b""
    assert setup.adds.on_run(connection, buffer, 50, scan_adds(buffer, 50, len(buffer)))
    assert setup.journal.chunks[before:] == [buffer[50:]]
    assert setup.adds.in_progress == len(sent)
    assert sorted(moved) == [1, 2, 3], "each ledger's LAC has moved, and who waited for it was told once"
    assert [ledger.lac for ledger in map(setup.table.find, (1, 2, 3)) if ledger is not None] == [2, 1, 0]
    for entry in sent:
        body = setup.cache.get(*entry)
        assert body is not None
        assert DIGEST.open(*entry, bytes(body)).payload == b"%d in %d" % entry
    assert connection.answers() == []
    setup.sync()
    assert connection.answers() == [(*entry, Code.EOK) for entry in sent]
    assert setup.adds.in_progress == 0


async def test_the_first_key_of_a_ledger_is_its_key_and_another_is_refused() -> None:
    setup, connection = Setup(), FakeConnection()
    await setup.send(connection, add(1, 0))
    await setup.send(connection, add(1, 1, key=OTHER_KEY))
    setup.sync()
    assert sorted(connection.answers()) == [(1, 0, Code.EOK), (1, 1, Code.EUA)]
    assert setup.journal.entries() == [(KEY, 0)], "what is refused is not journaled"
    assert setup.cache.get(1, 1) is None


async def test_a_fenced_ledger_takes_recovery_adds_only() -> None:
    setup, connection = Setup(), FakeConnection()
    await setup.send(connection, add(1, 0))
    ledger = setup.table.find(1)
    assert ledger is not None
    setup.table.fence(ledger, KEY)
    await setup.send(connection, add(1, 1) + add(1, 2, flags=Flag.RECOVERY_ADD) + add(1, 3))
    setup.sync()
    assert sorted(connection.answers()) == [
        (1, 0, Code.EOK), (1, 1, Code.EFENCED), (1, 2, Code.EOK), (1, 3, Code.EFENCED),
    ]  # fmt: skip
    assert [entry for _, entry in setup.journal.entries()] == [0, 2]


async def test_a_fence_from_before_the_restart_is_known_before_the_first_add_is_decided() -> None:
    setup, connection = Setup({9: LedgerFlags(master_key=KEY, fenced=True)}), FakeConnection()
    await setup.send(connection, add(9, 0))
    assert connection.answers() == [(9, 0, Code.EFENCED)]
    assert setup.journal.chunks == []


async def test_a_ledger_whose_flags_are_damaged_gets_no_answer_at_all() -> None:
    setup, connection = Setup({9: IndexDamagedError("flipped")}), FakeConnection()
    frames = add(9, 0)
    assert not setup.adds.on_run(connection, frames, 0, scan_adds(frames, 0, len(frames)))
    await until(lambda: connection.aborted, "the connection is closed")
    assert connection.sent == b""
    await setup.adds.aclose()


async def test_a_read_only_bookie_refuses_all_but_high_priority_adds() -> None:
    setup, connection = Setup(), FakeConnection()
    setup.switch.set(ReadOnlyReason.DISK_FULL, True)
    await setup.send(connection, add(1, 0) + add(1, 1, flags=Flag.HIGH_PRIORITY))
    setup.sync()
    assert sorted(connection.answers()) == [(1, 0, Code.EREADONLY), (1, 1, Code.EOK)]
    setup.switch.has_reserve = False
    await setup.send(connection, add(1, 2, flags=Flag.HIGH_PRIORITY))
    assert connection.answers()[-1] == (1, 2, Code.EREADONLY)


async def test_at_the_limit_in_progress_a_connection_is_held_until_enough_are_durable() -> None:
    setup, connection, other = Setup(in_progress_max=10), FakeConnection(), FakeConnection()
    await setup.send(connection, b"".join(add(1, entry) for entry in range(10)))
    frames = add(1, 10)
    assert not setup.adds.on_run(other, frames, 0, scan_adds(frames, 0, len(frames)))
    assert (other.held, len(setup.adds.busy_gate.waiting)) == (1, 1)
    setup.sync()
    assert other.held == 0
    await setup.send(other, frames)
    setup.sync()
    assert other.answers() == [(1, 10, Code.EOK)]


async def test_a_full_journal_queue_makes_writers_wait() -> None:
    setup, connection = Setup(), FakeConnection()
    setup.journal.records_max = 0
    frames = add(1, 0)
    assert not setup.adds.on_run(connection, frames, 0, scan_adds(frames, 0, len(frames)))
    assert connection.held == 1
    setup.journal.records_max = 1
    setup.adds.on_group_written()
    assert connection.held == 0
    await setup.send(connection, frames)


async def test_a_run_of_many_new_ledgers_is_taken_whole_by_a_journal_with_room_for_one_record() -> None:
    setup, connection = Setup(), FakeConnection()
    setup.journal.records_max = 1
    await setup.send(connection, b"".join(add(ledger, 0) for ledger in range(20)))
    assert setup.adds.in_progress == 20
    held = add(1, 1)
    assert not setup.adds.on_run(connection, held, 0, scan_adds(held, 0, len(held)))
    assert connection.held == 1
    setup.sync()
    assert connection.answers() == [(ledger, 0, Code.EOK) for ledger in range(20)]
    assert (setup.adds.in_progress, connection.held) == (0, 0)


async def test_what_is_refused_of_a_run_is_not_in_its_record_and_the_rest_is_where_it_can_be_read() -> None:
    setup, connection = Setup({2: LedgerFlags(master_key=OTHER_KEY)}), FakeConnection()
    setup.journal.records_max = 1
    frames = b"".join(add(ledger, entry, b"%d/%d" % (ledger, entry)) for ledger in (1, 2, 3) for entry in (0, 1))
    await setup.send(connection, frames)
    assert connection.answers() == [(2, 0, Code.EUA), (2, 1, Code.EUA)]
    setup.sync()
    assert connection.answers()[2:] == [(1, 0, Code.EOK), (1, 1, Code.EOK), (3, 0, Code.EOK), (3, 1, Code.EOK)]
    (chunk,) = setup.journal.chunks
    assert chunk == b"".join(add(ledger, entry, b"%d/%d" % (ledger, entry)) for ledger in (1, 3) for entry in (0, 1))
    for ledger in (1, 3):
        for entry in (0, 1):
            assert bytes(setup.cache.get(ledger, entry) or b"").endswith(b"%d/%d" % (ledger, entry))
    assert setup.cache.get(2, 0) is None


async def test_what_a_run_has_taken_already_counts_for_its_writers_quota() -> None:
    setup, connection = Setup(per_connection_max=5, wait_s=0.0), FakeConnection()
    await setup.send(connection, add(1, 0))
    await setup.send(connection, b"".join(add(ledger, entry) for ledger in (1, 2, 3) for entry in (1, 2)))
    assert connection.answers() == [(3, 1, Code.ETOOMANYREQUESTS), (3, 2, Code.ETOOMANYREQUESTS)]
    assert setup.adds.in_progress == 5


async def test_a_writer_that_has_nothing_waiting_is_not_refused_however_many_adds_it_brings() -> None:
    setup, connection = Setup(per_connection_max=5), FakeConnection()
    await setup.send(connection, b"".join(add(ledger, entry) for ledger in (1, 2, 3) for entry in range(4)))
    assert setup.adds.in_progress == 12
    setup.sync()
    assert {code for _, _, code in connection.answers()} == {Code.EOK}


@pytest.mark.parametrize("protobuf", [False, True])
async def test_an_add_that_the_journal_does_not_take_is_not_in_progress(protobuf: bool) -> None:
    setup, connection = Setup(), FakeConnection()
    await setup.send(connection, add(1, 0))
    setup.sync()
    setup.journal.failure = JournalFailedError("the disk is gone")
    frames = add(1, 1)
    offer: Callable[[], int] = partial(setup.adds.on_run, connection, frames, 0, scan_adds(frames, 0, len(frames)))
    if protobuf:
        offer = partial(setup.adds.on_add, connection, AddEntry(1, 1, KEY, frames[28:], deferred_sync=True))
    with pytest.raises(JournalFailedError):
        offer()
    assert setup.adds.in_progress == 0
    assert not setup.adds.quotas.pending
    assert connection.answers() == [(1, 0, Code.EOK)]


async def test_a_writer_with_too_many_pending_adds_is_held_until_most_of_them_are_written() -> None:
    setup, greedy, modest = Setup(per_connection_max=5), FakeConnection(), FakeConnection()
    await setup.send(greedy, b"".join(add(1, entry) for entry in range(5)))
    sending = asyncio.ensure_future(setup.send(greedy, add(1, 5)))
    await until(lambda: greedy.held == 1, "held")
    await setup.send(modest, add(2, 0))
    assert not modest.held
    assert greedy.answers() == []
    setup.sync()
    await sending
    setup.sync()
    assert greedy.answers() == [(1, entry, Code.EOK) for entry in range(6)]
    assert setup.adds.quotas.held == 1
    assert setup.adds.refused == {}


async def test_a_writer_whose_pending_adds_stay_too_many_is_refused_and_others_are_not() -> None:
    setup, greedy, modest = Setup(per_connection_max=5, wait_s=0.01), FakeConnection(), FakeConnection()
    await setup.send(greedy, b"".join(add(1, entry) for entry in range(5)))
    await setup.send(greedy, add(1, 5))  # Held first, then refused.
    await setup.send(greedy, add(1, 6))
    await setup.send(modest, add(2, 0))
    assert greedy.answers() == [(1, 5, Code.ETOOMANYREQUESTS), (1, 6, Code.ETOOMANYREQUESTS)]
    assert setup.adds.quotas.held == 1
    setup.sync()
    assert modest.answers() == [(2, 0, Code.EOK)]
    assert setup.adds.refused == {Code.ETOOMANYREQUESTS: 2}
    await setup.send(greedy, add(1, 7))
    setup.sync()
    assert greedy.answers()[-1] == (1, 7, Code.EOK), "it has come down, and is served again"


async def test_a_writer_that_is_closed_while_it_is_held_leaves_nothing() -> None:
    setup, connection = Setup(per_connection_max=1, wait_s=0.01), FakeConnection()
    await setup.send(connection, add(1, 0))
    assert not setup.adds.on_run(connection, add(1, 1), 0, scan_adds(add(1, 1), 0, len(add(1, 1))))
    setup.adds.on_closed(connection)
    assert not setup.adds.quotas.pending
    setup.sync()
    assert setup.adds.in_progress == 0


async def test_a_cache_that_stays_full_for_too_long_refuses_instead_of_holding() -> None:
    setup, connection = Setup(), FakeConnection()
    setup.cache_gate._patience_s = 0.01
    setup.has_room = False
    await setup.send(connection, add(1, 0))  # Held first, then refused.
    assert connection.answers() == [(1, 0, Code.ETOOMANYREQUESTS)]
    setup.has_room = True
    setup.cache_gate.open()
    await setup.send(connection, add(1, 1))
    setup.sync()
    assert connection.answers()[1:] == [(1, 1, Code.EOK)]


async def test_a_run_of_more_ledgers_than_the_table_holds_is_taken_in_parts_and_in_its_order() -> None:
    setup, connection = Setup(ledgers_max=2), FakeConnection()
    sent = [(1, 0), (2, 0), (3, 0), (1, 1), (2, 1), (3, 1), (3, 2), (1, 2)]
    await setup.send(connection, b"".join(add(*entry) for entry in sent))
    assert len(setup.table) == 2
    assert connection.answers() == []
    setup.sync()
    assert connection.answers() == [(*entry, Code.EOK) for entry in sent]
    assert setup.journal.entries() == [(KEY, entry) for _, entry in sent]


async def test_a_run_is_taken_up_to_its_first_ledger_that_is_not_in_memory() -> None:
    setup, connection = Setup(), FakeConnection()
    await setup.table.load(1)
    frames = add(1, 0) + add(1, 1) + add(2, 0) + add(1, 2)
    assert setup.adds.on_run(connection, frames, 0, scan_adds(frames, 0, len(frames))) == 2
    assert connection.held
    assert setup.adds.in_progress == 2
    assert [entry for _, entry in setup.journal.entries()] == [0, 1]
    await setup.adds.aclose()


@pytest.mark.parametrize("protobuf", [False, True])
async def test_an_add_is_taken_after_its_load_although_others_have_crowded_its_ledger_out_meanwhile(
    protobuf: bool,
) -> None:
    setup, connection = Setup(ledgers_max=2), FakeConnection()
    frames = add(1, 0)
    offer: Callable[[], int] = partial(setup.adds.on_run, connection, frames, 0, scan_adds(frames, 0, len(frames)))
    if protobuf:
        offer = partial(setup.adds.on_add, connection, AddEntry(1, 0, KEY, frames[28:]))
    assert not offer()
    await until(lambda: not connection.held, "loaded")
    for other in (2, 3, 4):
        await setup.table.load(other)
    assert setup.table.find(1) is None
    assert offer()
    setup.sync()
    assert connection.sent


async def test_what_was_loaded_for_a_connection_is_not_kept_when_that_is_closed() -> None:
    setup, connection = Setup(ledgers_max=2), FakeConnection()
    frames = add(1, 0)
    assert not setup.adds.on_run(connection, frames, 0, scan_adds(frames, 0, len(frames)))
    await until(lambda: not connection.held, "loaded")
    gone = weakref.ref(setup.table.find(1) or connection)
    for other in (2, 3, 4):
        await setup.table.load(other)
    assert gone() is not None
    setup.adds.on_closed(connection)
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("deferred", [False, True])
async def test_a_protobuf_add_is_stored_in_the_same_form_and_answered_in_its_own(deferred: bool) -> None:
    setup, connection = Setup(), FakeConnection()
    body = add(4, 2, b"three")[28:]
    request = AddEntry(4, 2, KEY, body, deferred_sync=deferred, txn_id=77)
    while not setup.adds.on_add(connection, request):
        await until(lambda: not connection.held, "loaded")
    assert bool(connection.sent) is deferred
    setup.sync()
    decoded = decode_response(connection.sent, 0, len(connection.sent), V3)
    assert decoded is not None
    assert decoded.end == len(connection.sent), "one answer"
    assert decoded.response == AddResponse(Code.EOK, 4, 2, txn_id=77)
    assert bytes(setup.cache.get(4, 2) or b"") == body


async def test_the_lac_that_entries_carry_moves_forward_only() -> None:
    setup, connection = Setup(), FakeConnection()
    await setup.send(connection, add(1, 5))
    await setup.send(connection, add(1, 3))
    ledger = setup.table.find(1)
    assert ledger is not None
    assert ledger.lac == 4


async def test_answers_to_a_closed_connection_are_nobodys_and_free_its_quota() -> None:
    setup, connection = Setup(per_connection_max=2), FakeConnection()
    await setup.send(connection, add(1, 0) + add(1, 1))
    setup.adds.on_closed(connection)
    setup.sync()
    assert setup.adds.in_progress == 0
    assert not setup.adds.quotas.pending
