"""A connection on a real socket, with a handler that only writes down what it is given."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Iterable

import pytest
import pytest_asyncio

from magnetar.bookie.connection import (
    ANSWERS_AT_ONCE_MAX,
    RECEIVE_BYTES,
    WRITE_BYTES_MAX,
    Connection,
    ConnectionCounters,
)
from magnetar.runtime.receiving import ReceiveMemory
from magnetar.storage.frames import ENTRY_OFFSET
from magnetar.testing.waiting import until
from magnetar.wire.bookkeeper.digests import DigestType, entry_digest
from magnetar.wire.bookkeeper.ends import encode_request
from magnetar.wire.bookkeeper.frames import Buffer, frame_end
from magnetar.wire.bookkeeper.hot_path import AddEncoder, AddRun, ReadRun, encode_adds_done, parse_context
from magnetar.wire.bookkeeper.messages import V2, AnyRequest, GetBookieInfo, ReadEntry

KEY = b"k" * 20
DIGEST = entry_digest(DigestType.CRC32C)


def add_frame(ledger_id: int, entry_id: int, payload: bytes = b"payload") -> bytes:
    return AddEncoder(ledger_id, KEY, DIGEST).header(entry_id, entry_id - 1, 1, payload) + payload


def receive_memory() -> ReceiveMemory:
    return ReceiveMemory(RECEIVE_BYTES, bytes_max=2**27, frame_timeout_s=30, frame_end=frame_end)


class Notebook:
    """A handler that answers adds, and keeps what it saw."""

    def __init__(self) -> None:
        self.adds: list[tuple[int, int, bytes]] = []
        self.runs = 0
        self.reads: list[tuple[int, int]] = []
        self.requests: list[AnyRequest] = []
        self.closed = 0
        self.connection: Connection | None = None
        self.answer_with = b""

    def on_adds(self, connection: Connection, buffer: bytearray, start: int, run: AddRun) -> int:
        self.connection = connection
        self.runs += 1
        firsts = [*run.firsts, len(run.entry_ids)]
        for context, first, after in zip(run.contexts, firsts, firsts[1:], strict=False):
            ledger_id = parse_context(context).ledger_id
            for at in range(first, after):
                entry = bytes(buffer[run.offsets[at] : run.offsets[at] + run.lengths[at]])
                self.adds.append((ledger_id, run.entry_ids[at], entry[-7:]))
            connection.send((encode_adds_done(bytes(buffer), run.offsets[first:after]),), after - first)
        if self.answer_with:
            connection.send((self.answer_with,))
        return len(run.entry_ids)

    def on_reads(self, connection: Connection, run: ReadRun) -> int:
        self.connection = connection
        self.reads += zip(run.ledger_ids, run.entry_ids, strict=True)
        return len(run.entry_ids)

    def on_request(self, connection: Connection, request: AnyRequest) -> bool:
        self.connection = connection
        self.requests.append(request)
        return True

    def on_closed(self, connection: Connection) -> None:
        self.closed += 1


class Setup:
    def __init__(self) -> None:
        self.notebook = Notebook()
        self.counters = ConnectionCounters()
        self.memory = receive_memory()
        self.connections: list[Connection] = []
        self.port = 0
        self._writers: list[asyncio.StreamWriter] = []

    def accept(self) -> Connection:
        self.connections.append(Connection(self.notebook, self.counters, self.memory, unwritable_wait_s=0.05))
        return self.connections[-1]

    def has_received(self, total: int) -> bool:
        return self.counters.received_bytes == total

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self._writers.append(writer)
        return reader, writer

    async def aclose(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        for connection in self.connections:
            connection.abort()
            await connection.wait_closed()


@pytest_asyncio.fixture
async def setup() -> AsyncIterator[Setup]:
    made = Setup()
    server = await asyncio.get_running_loop().create_server(made.accept, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    yield made
    await made.aclose()
    server.close()
    await server.wait_closed()


async def test_frames_of_one_write_are_handled_as_one_run_and_answered(setup: Setup) -> None:
    reader, writer = await setup.connect()
    writer.write(b"".join(add_frame(7, entry) for entry in range(50)))
    assert await reader.readexactly(50 * 28)
    assert setup.notebook.adds == [(7, entry, b"payload") for entry in range(50)]
    assert setup.notebook.runs == 1


async def test_every_way_to_cut_a_stream_gives_the_same_requests(setup: Setup) -> None:
    frames = [add_frame(1, 0), encode_request(ReadEntry(1, 0, version=V2)), add_frame(2, 1), add_frame(2, 2)]
    stream = b"".join(frames)
    sent = 0
    for cut in range(1, len(stream), 7):
        setup.notebook.adds.clear()
        setup.notebook.reads.clear()
        _, writer = await setup.connect()
        writer.write(stream[:cut])
        sent += cut
        await until(functools.partial(setup.has_received, sent), "the first part arrived")
        writer.write(stream[cut:])
        sent += len(stream) - cut
        await until(functools.partial(setup.has_received, sent), "the second part arrived")
        assert [(ledger, entry) for ledger, entry, _ in setup.notebook.adds] == [(1, 0), (2, 1), (2, 2)]
        assert setup.notebook.reads == [(1, 0)]


async def test_a_frame_larger_than_the_buffer_arrives_whole(setup: Setup) -> None:
    _, writer = await setup.connect()
    large = bytes(3 * RECEIVE_BYTES) + b"the end"
    writer.write(add_frame(1, 0) + add_frame(1, 1, large) + add_frame(1, 2))
    await until(lambda: len(setup.notebook.adds) == 3, "all three arrived")
    assert [entry for _, _, entry in setup.notebook.adds] == [b"payload", b"the end", b"payload"]


async def test_the_buffer_of_a_large_frame_is_given_back_when_no_other_follows(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup.memory, "_tick_s", 0.01)
    reader, writer = await setup.connect()
    writer.write(add_frame(1, 0, bytes(20 * RECEIVE_BYTES) + b"the end"))
    assert await reader.readexactly(28)
    await until(lambda: not setup.memory.kept_bytes, "the large buffer is gone")
    writer.write(add_frame(1, 1))
    assert await reader.readexactly(28)
    assert [entry for _, _, entry in setup.notebook.adds] == [b"the end", b"payload"]


async def test_there_is_room_for_a_read_that_was_under_way_when_the_connection_was_held(setup: Setup) -> None:
    connection = setup.accept()
    connection.hold("test")
    frames = b"".join(add_frame(1, entry, bytes(993) + b"payload") for entry in range(600))
    at = 0
    while at < len(frames):
        buffer = connection.get_buffer(-1)
        size = min(len(buffer), len(frames) - at)
        assert size > 0
        buffer[:size] = frames[at : at + size]
        at += size
        connection.buffer_updated(size)
    assert setup.notebook.adds == []
    setup.connections.remove(connection)  # It never had a transport.


async def test_a_v3_request_is_handed_on_whole(setup: Setup) -> None:
    _, writer = await setup.connect()
    writer.write(encode_request(GetBookieInfo(txn_id=5)))
    await until(lambda: setup.notebook.requests, "the request arrived")
    assert setup.notebook.requests == [GetBookieInfo(txn_id=5)]


async def test_a_broken_frame_closes_only_its_connection(setup: Setup) -> None:
    reader, writer = await setup.connect()
    other_reader, other = await setup.connect()
    writer.write(b"\xff\xff\xff\xff hostile length")
    assert await reader.read() == b""
    assert setup.counters.broken == 1
    other.write(add_frame(1, 0))
    assert await other_reader.readexactly(28)


async def test_a_held_connection_takes_no_requests_until_the_last_hold_is_released(setup: Setup) -> None:
    reader, writer = await setup.connect()
    writer.write(add_frame(1, 0))
    assert await reader.readexactly(28)
    connection = setup.notebook.connection
    assert connection is not None
    connection.hold("one reason")
    connection.hold("another reason")
    writer.write(add_frame(1, 1))
    await writer.drain()
    connection.release("one reason")
    other_reader, other = await setup.connect()
    other.write(add_frame(9, 9))
    assert await other_reader.readexactly(28)  # Enough turns for the held one to be read, if it were.
    assert (1, 1, b"payload") not in setup.notebook.adds
    connection.release("another reason")
    assert await reader.readexactly(28)
    assert (1, 1, b"payload") in setup.notebook.adds


async def test_holding_in_the_middle_of_a_read_keeps_the_rest_for_later(setup: Setup) -> None:
    class HoldAfterFirst(Notebook):
        def on_request(self, connection: Connection, request: AnyRequest) -> bool:
            super().on_request(connection, request)
            if len(self.requests) == 1:
                connection.hold("test")
            return True

    setup.notebook.__class__ = HoldAfterFirst
    _, writer = await setup.connect()
    writer.write(encode_request(GetBookieInfo(txn_id=1)) + encode_request(GetBookieInfo(txn_id=2)))
    await until(lambda: setup.notebook.requests, "the first arrived")
    assert [request.txn_id for request in setup.notebook.requests] == [1]
    assert setup.notebook.connection is not None
    setup.notebook.connection.release("test")
    await until(lambda: len(setup.notebook.requests) == 2, "the second arrived")


async def test_what_is_not_taken_is_offered_again_after_the_release(setup: Setup) -> None:
    class Hesitant(Notebook):
        def on_adds(self, connection: Connection, buffer: bytearray, start: int, run: AddRun) -> int:
            if self.connection is None:
                self.connection = connection
                connection.hold("test")
                return 0
            return super().on_adds(connection, buffer, start, run)

    setup.notebook.__class__ = Hesitant
    reader, writer = await setup.connect()
    writer.write(add_frame(1, 0) + add_frame(1, 1))
    await until(lambda: setup.notebook.connection, "the run was offered")
    assert setup.notebook.adds == []
    assert setup.notebook.connection is not None
    setup.notebook.connection.release("test")
    assert await reader.readexactly(2 * 28)
    assert [entry for _, entry, _ in setup.notebook.adds] == [0, 1]


async def test_a_client_that_never_reads_is_held_and_its_answers_are_dropped_and_counted(setup: Setup) -> None:
    _, writer = await setup.connect()
    writer.write(add_frame(1, 0))
    await until(lambda: setup.notebook.connection, "the add arrived")
    connection = setup.notebook.connection
    assert connection is not None
    for _ in range(5):
        connection.send((bytes(10_000_000),))
        await asyncio.sleep(0)
    await until(lambda: setup.counters.dropped_answers > 0, "answers are dropped")
    sent = setup.counters.sent_bytes
    for _ in range(100):
        connection.send((bytes(1_000_000),))
    assert setup.counters.dropped_answers >= 100
    writer.write(add_frame(1, 1))
    await writer.drain()
    assert setup.counters.sent_bytes == sent
    assert [entry for _, entry, _ in setup.notebook.adds] == [0], "a held client is not read"


async def test_answers_dropped_for_one_client_leave_the_others_alone(setup: Setup) -> None:
    setup.notebook.answer_with = bytes(5_000_000)
    _, deaf = await setup.connect()
    for entry in range(20):
        deaf.write(add_frame(1, entry))
    await until(lambda: setup.notebook.runs >= 1, "the deaf client's adds arrived")
    setup.notebook.answer_with = b""
    reader, writer = await setup.connect()
    writer.write(add_frame(2, 0))
    assert await reader.readexactly(28)


async def test_a_lost_connection_is_reported_once(setup: Setup) -> None:
    _, writer = await setup.connect()
    writer.write(add_frame(1, 0))
    await until(lambda: setup.notebook.adds, "the add arrived")
    writer.transport.abort()
    await until(lambda: setup.notebook.closed, "the end was noticed")
    assert (setup.notebook.closed, setup.counters.opened, setup.counters.closed) == (1, 1, 1)
    assert setup.notebook.connection is not None
    setup.notebook.connection.send((b"too late",))


async def connected(setup: Setup) -> tuple[asyncio.StreamReader, Connection]:
    reader, writer = await setup.connect()
    writer.write(add_frame(1, 0))
    await reader.readexactly(28)
    assert setup.notebook.connection is not None
    return reader, setup.notebook.connection


async def test_many_answers_of_one_turn_arrive_whole_and_in_order(setup: Setup) -> None:
    reader, connection = await connected(setup)
    parts = [bytes([number % 256]) * 50_000 for number in range(200)]
    connection.send(parts, len(parts))
    assert await reader.readexactly(200 * 50_000) == b"".join(parts)
    assert setup.counters.dropped_answers == 0


async def test_what_was_sent_leaves_before_the_connection_is_closed(setup: Setup) -> None:
    reader, connection = await connected(setup)
    connection.send((b"x" * 900_000, b"y" * 900_000), 2)
    connection.close()
    assert await reader.read(-1) == b"x" * 900_000 + b"y" * 900_000


async def test_a_transport_gets_little_of_what_its_client_does_not_read(setup: Setup) -> None:
    """It keeps what it has as long as the connection lives, also after the rest was dropped."""
    _, connection = await connected(setup)
    connection.send([bytes(100_000) for _ in range(300)], 300)
    await until(lambda: setup.counters.dropped_answers > 200, "answers are dropped")
    assert connection._transport is not None
    assert connection._transport.get_write_buffer_size() < 3 * WRITE_BYTES_MAX
    assert setup.counters.dropped_answers <= 300


async def test_who_has_many_answers_waits_until_the_client_reads_or_has_lost_its_chance(setup: Setup) -> None:
    async def turn() -> None:
        async with connection.turn_to_answer():
            pass

    reader, connection = await connected(setup)
    connection._unwritable_wait_s = 60.0
    connection.send((bytes(10_000_000),))
    waiting = asyncio.ensure_future(turn())
    await until(lambda: connection._transport_is_full, "the client's socket is full")
    assert not waiting.done()
    await reader.readexactly(10_000_000)
    await asyncio.wait_for(waiting, 10)
    connection._unwritable_wait_s = 0.05
    connection.send((bytes(10_000_000),))
    await asyncio.wait_for(turn(), 10)
    assert connection._dropping


async def test_few_answers_are_made_at_once_for_one_client(setup: Setup) -> None:
    """Each may be as large as a frame, and none is written before it is made."""
    _, connection = await connected(setup)
    begun = 0
    finish = asyncio.Event()

    async def make() -> None:
        nonlocal begun
        async with connection.turn_to_answer():
            begun += 1
            await finish.wait()

    making = [asyncio.ensure_future(make()) for _ in range(100)]
    await until(lambda: begun == ANSWERS_AT_ONCE_MAX, "the first ones are being made")
    finish.set()
    await asyncio.wait_for(asyncio.gather(*making), 10)
    assert begun == 100


async def test_a_client_that_reads_gets_every_answer_however_many_are_sent_at_once(setup: Setup) -> None:
    reader, connection = await connected(setup)
    connection._unwritable_wait_s = 60.0
    for number in range(100):
        connection.send((bytes([number]) * 1_000_000,))
    assert not connection.takes_answers
    for number in range(100):
        assert await reader.readexactly(1_000_000) == bytes([number]) * 1_000_000
    assert setup.counters.dropped_answers == 0
    assert connection.takes_answers


async def test_a_client_with_much_unsent_is_not_heard_until_most_of_it_has_left(setup: Setup) -> None:
    reader, writer = await setup.connect()
    writer.write(add_frame(1, 0))
    await reader.readexactly(28)
    connection = setup.notebook.connection
    assert connection is not None
    connection._unwritable_wait_s = 60.0
    connection.send([bytes(1_000_000) for _ in range(60)], 60)
    writer.write(add_frame(1, 1))
    await writer.drain()
    await reader.readexactly(30_000_000)
    assert [entry for _, entry, _ in setup.notebook.adds] == [0]
    await reader.readexactly(30_000_000)
    assert await reader.readexactly(28)
    assert [entry for _, entry, _ in setup.notebook.adds] == [0, 1]


async def test_reads_that_were_not_taken_are_offered_again_and_those_before_them_are_not(setup: Setup) -> None:
    class TakesTwo(Notebook):
        def on_reads(self, connection: Connection, run: ReadRun) -> int:
            self.reads += list(zip(run.ledger_ids, run.entry_ids, strict=True))[:2]
            if len(run.entry_ids) > 2:
                connection.hold("test")
                asyncio.get_running_loop().call_soon(connection.release, "test")
            return min(2, len(run.entry_ids))

    setup.notebook.__class__ = TakesTwo
    _, writer = await setup.connect()
    writer.write(b"".join(encode_request(ReadEntry(1, entry, version=V2)) for entry in range(7)) + add_frame(1, 0))
    await until(lambda: setup.notebook.adds, "what came behind the reads arrived")
    assert setup.notebook.reads == [(1, entry) for entry in range(7)]


async def test_adds_that_were_not_taken_are_offered_again_and_those_before_them_are_not(setup: Setup) -> None:
    class TakesTwo(Notebook):
        def on_adds(self, connection: Connection, buffer: bytearray, start: int, run: AddRun) -> int:
            assert start == run.offsets[0] - ENTRY_OFFSET
            self.adds += [(1, entry_id, b"") for entry_id in run.entry_ids[:2]]
            if len(run.entry_ids) > 2:
                connection.hold("test")
                asyncio.get_running_loop().call_soon(connection.release, "test")
            return min(2, len(run.entry_ids))

    setup.notebook.__class__ = TakesTwo
    _, writer = await setup.connect()
    adds = b"".join(add_frame(1 + entry % 3, entry, b"x" * entry) for entry in range(7))
    writer.write(adds + encode_request(ReadEntry(1, 0, version=V2)))
    await until(lambda: setup.notebook.reads, "what came after the adds arrived")
    assert [entry for _, entry, _ in setup.notebook.adds] == list(range(7))


class Peer(asyncio.Transport):
    """A transport whose client reads only when the test says so: it holds the connection whenever it has anything."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection
        self.written = bytearray()
        self.unread_bytes = 0
        connection.connection_made(self)

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        self.write(b"".join(list_of_data))

    def write(self, data: Buffer) -> None:
        self.written += data
        self.unread_bytes += len(data)
        self._connection.pause_writing()

    def read(self, size: int) -> None:
        self.unread_bytes -= size
        if not self.unread_bytes:
            self._connection.resume_writing()

    def get_write_buffer_size(self) -> int:
        return self.unread_bytes

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def frames(self) -> list[bytes]:
        """What the client makes of it."""
        found: list[bytes] = []
        at = 0
        while at < len(self.written):
            end = at + 4 + int.from_bytes(self.written[at : at + 4], "big")
            assert end <= len(self.written), "a frame that never comes whole"
            found.append(bytes(self.written[at:end]))
            at = end
        return found


def answer_of(number: int, entry_bytes: int, entries: int = 1) -> list[Buffer]:
    """A frame of several parts, each of which contains the frame's number."""
    entry = number.to_bytes(4, "big") * (entry_bytes // 4)
    head = number.to_bytes(4, "big") * 6
    return [(len(head) + entries * len(entry)).to_bytes(4, "big") + head, *[entry] * entries]


ENTRY_BYTES = next(size for size in range(1_000, 1_100, 4) if 0 < WRITE_BYTES_MAX % (28 + size) <= 28)
"""Of such answers, the one that reaches what a transport gets at once does so with its head."""


@pytest.mark.parametrize(
    ("entry_bytes", "entries", "sent_at_once"),
    [(ENTRY_BYTES, 1, 1), (ENTRY_BYTES, 1, 256), (ENTRY_BYTES, 1, 2_000), (ENTRY_BYTES, 3_000, 1)],
    ids=["reads", "runs of reads", "one long run of reads", "batches"],
)
async def test_an_answer_that_was_begun_is_finished_though_those_behind_it_are_dropped(
    entry_bytes: int, entries: int, sent_at_once: int
) -> None:
    counters = ConnectionCounters()
    connection = Connection(Notebook(), counters, receive_memory(), unwritable_wait_s=0.0)
    peer = Peer(connection)
    answers = [answer_of(number, entry_bytes, entries) for number in range(2_000 // entries + 2)]
    for first in range(0, len(answers), sent_at_once):
        some = answers[first : first + sent_at_once]
        connection.send([part for parts in some for part in parts], len(some))
    await until(lambda: counters.dropped_answers, "answers are dropped")
    peer.read(peer.unread_bytes)
    late = answer_of(99_999, entry_bytes, entries)
    connection.send(late)
    await until(lambda: peer.unread_bytes, "the next answer is written")
    *begun, last = peer.frames()
    assert last == b"".join(late)
    assert begun == [b"".join(parts) for parts in answers[: len(begun)]]
    assert counters.dropped_answers == len(answers) - len(begun)
    connection.connection_lost(None)


@pytest.mark.virtual_time
async def test_a_client_that_reads_slowly_loses_no_answer_until_it_reads_nothing_for_a_while() -> None:
    counters = ConnectionCounters()
    connection = Connection(Notebook(), counters, receive_memory(), unwritable_wait_s=5.0)
    peer = Peer(connection)
    connection.send((bytes(2_000),))
    await until(lambda: peer.unread_bytes, "the first answer is written")
    connection.send((bytes(1_000),))
    for _ in range(10):
        await asyncio.sleep(4.0)
        peer.read(100)
    assert (counters.dropped_answers, connection.takes_answers) == (0, False)
    await asyncio.sleep(10.0)
    assert (counters.dropped_answers, connection.takes_answers) == (1, True)
    connection.connection_lost(None)
