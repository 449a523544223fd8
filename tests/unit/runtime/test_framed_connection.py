"""What every connection of frames does, whatever its protocol, its inbox and its transport."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any

import pytest

from magnetar.errors import ListenError, MagnetarError, RemoteProtocolError
from magnetar.runtime import descriptors
from magnetar.runtime.framed_connection import (
    UNDELIVERED,
    UNSENT,
    Buffer,
    ConnectionCounters,
    FramedConnection,
    Inbox,
    PrivateInbox,
    dial,
    listen,
)
from magnetar.runtime.receiving import Received, ReceiveMemory
from magnetar.testing.waiting import until

BUFFER_BYTES = 2**16
UNSENT_MAX = 10_000
FRAME_BYTES_MAX = 2**20
PING = b"\0\0\0\4ping"


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def frame_end(buffer: bytearray, start: int, end: int) -> int | None:
    if end - start < 4:
        return None
    size = int.from_bytes(buffer[start : start + 4], "big")
    if size > FRAME_BYTES_MAX:
        raise RemoteProtocolError(f"a frame of {size} bytes")
    return start + 4 + size


class Protocol(FramedConnection):
    """Writes down the frames that it is given."""

    def __init__(self, memory: ReceiveMemory | None = None, *, server: str = "", **limits: int) -> None:
        inbox: Inbox = PrivateInbox(BUFFER_BYTES, frame_end) if memory is None else Received(memory, self)
        self.counters = ConnectionCounters()
        super().__init__(inbox, self.counters, server=server, **limits)
        self.frames: list[bytes] = []
        self.lent: list[Buffer] = []
        self.errors: list[MagnetarError] = []
        self.ends: list[Exception | None] = []
        self.given_up: list[str] = []
        self.progress = 0
        self.silent = 0
        self.on_frame: Callable[[bytes], None] = lambda _: None

    def on_received(self, buffer: bytearray, start: int, end: int) -> int:
        while start < end and not self.is_held and not self.is_closing:
            following = frame_end(buffer, start, end)
            if following is None or following > end:
                break
            self.lent.append(memoryview(buffer)[start + 4 : following])
            self.frames.append(bytes(self.lent[-1]))
            start = following
            self.on_frame(self.frames[-1])
        return start

    def on_failed(self, error: MagnetarError) -> None:
        self.errors.append(error)
        self.abort()

    def on_closed(self, exc: Exception | None) -> None:
        self.ends.append(exc)

    def on_progress(self) -> None:
        super().on_progress()
        self.progress += 1

    def on_silent(self) -> None:
        self.silent += 1
        self.abort()

    def give_up(self, why: str) -> None:
        self.given_up.append(why)
        self.abort()


class Transport(asyncio.Transport):
    """Keeps what is written, and is full when the test says so."""

    def __init__(self, protocol: Protocol, *, fileno: int | None = None) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.parts: list[int] = []
        self.is_read = True
        self.is_closed = False
        self.is_aborted = False
        self.fills_at_once = False
        self._fileno = fileno
        self._protocol = protocol
        protocol.connection_made(self)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self if name == "socket" and self._fileno is not None else default

    def fileno(self) -> int | None:
        return self._fileno

    def write(self, data: Buffer) -> None:
        self.writelines([data])

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        parts = list(list_of_data)
        self.writes.append(b"".join(parts))
        self.parts.append(len(parts))
        if self.fills_at_once:
            self._protocol.pause_writing()

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_aborted = True

    def bring(self, data: bytes, at_once: int = 10**9) -> None:
        """In reads of this size at most, and of what the connection has room for."""
        at = 0
        while at < len(data):
            room = self._protocol.get_buffer(-1)
            assert len(room), "there must be room for a read"
            size = min(len(room), len(data) - at, at_once)
            room[:size] = data[at : at + size]
            at += size
            self._protocol.buffer_updated(size)


def shared_memory() -> ReceiveMemory:
    return ReceiveMemory(BUFFER_BYTES, bytes_max=2**24, frame_timeout_s=30, frame_end=frame_end)


def connected(**limits: int) -> tuple[Protocol, Transport]:
    protocol = Protocol(**limits)
    return protocol, Transport(protocol)


# --- receiving --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_shared", [True, False], ids=["shared memory", "private inbox"])
@pytest.mark.parametrize("seed", range(10))
async def test_every_frame_arrives_whole_and_in_order_however_reads_cut_the_stream(is_shared: bool, seed: int) -> None:
    random = Random(seed)
    memory = shared_memory() if is_shared else None
    protocol = Protocol(memory)
    transport = Transport(protocol)
    sizes = (0, 1, 100, BUFFER_BYTES // 2, BUFFER_BYTES - 5, BUFFER_BYTES - 4, BUFFER_BYTES - 3, 5 * BUFFER_BYTES)
    bodies = [bytes([random.randrange(256)]) * random.choice(sizes) for _ in range(60)]
    stream = b"".join(map(frame, bodies))
    while stream:
        size = random.choice((1, 3, 1_000, BUFFER_BYTES, 10**6))
        transport.bring(stream[:size])
        stream = stream[size:]
    assert protocol.frames == bodies
    assert protocol.counters.received_bytes == sum(map(len, bodies)) + 4 * len(bodies)
    protocol.connection_lost(None)
    if memory is not None:
        assert memory.kept_bytes == 0
        memory.close()


async def test_a_private_inbox_gives_a_large_frame_away_and_receives_the_next_ones_elsewhere() -> None:
    protocol, transport = connected()
    large: list[bool] = []
    protocol.on_frame = lambda _: large.append(bool(getattr(protocol._inbox, "is_large", False)))
    body = b"x" * (2 * BUFFER_BYTES)
    transport.bring(frame(b"small") + frame(body) + frame(b"y" * 100) * 2_000)
    assert large[:3] == [False, True, False]
    assert bytes(protocol.lent[1]) == body


async def test_an_error_of_the_protocol_ends_the_connection_and_drops_what_follows() -> None:
    protocol, transport = connected()
    transport.bring(frame(b"good") + b"\xff\xff\xff\xff hostile length")
    assert [type(error) for error in protocol.errors] == [RemoteProtocolError]
    assert transport.is_aborted
    transport.bring(frame(b"too late"))
    assert protocol.frames == [b"good"]


# --- holding ----------------------------------------------------------------------------------------------------------


async def test_a_connection_is_read_again_when_the_last_of_several_reasons_has_gone() -> None:
    protocol, transport = connected()
    protocol.hold("a")
    protocol.hold("b")
    protocol.hold("a")
    assert (protocol.is_held, transport.is_read) == (True, False)
    protocol.release("a")
    protocol.release("a")
    protocol.release("never held")
    assert (protocol.is_held, transport.is_read) == (True, False)
    protocol.release("b")
    assert (protocol.is_held, transport.is_read) == (False, True)


async def test_a_hold_in_the_middle_of_a_read_keeps_the_rest_which_is_handled_before_more_is_read() -> None:
    protocol, transport = connected()
    protocol.on_frame = lambda _: protocol.hold("one at a time")
    transport.bring(frame(b"1") + frame(b"2") + frame(b"3") + frame(b"4")[:3])
    for number in range(1, 4):
        assert len(protocol.frames) == number
        protocol.release("one at a time")
        assert not transport.is_read
        await asyncio.sleep(0)
    protocol.release("one at a time")
    await asyncio.sleep(0)
    assert protocol.frames == [b"1", b"2", b"3"]
    assert transport.is_read  # For the rest of the fourth.


async def test_a_hold_that_is_released_by_the_handler_itself_stops_nothing() -> None:
    def hold_and_release(_: bytes) -> None:
        protocol.hold("brief")
        protocol.release("brief")

    protocol, transport = connected()
    protocol.on_frame = hold_and_release
    transport.bring(frame(b"1") + frame(b"2"))
    await asyncio.sleep(0)
    assert protocol.frames == [b"1", b"2"]
    assert transport.is_read


async def test_only_reasons_of_this_process_excuse_a_client_that_is_held() -> None:
    protocol, _ = connected()
    for reason in (UNSENT, UNDELIVERED):
        protocol.hold(reason)
        assert not protocol.is_excused
    protocol.hold("disk")
    assert protocol.is_excused


# --- sending ----------------------------------------------------------------------------------------------------------


async def test_what_is_sent_in_one_turn_leaves_in_one_write_in_its_order() -> None:
    protocol, transport = connected()
    for number in range(5):
        protocol.send((b"%d" % number, b";"))
    assert transport.writes == []
    await asyncio.sleep(0)
    assert transport.writes == [b"0;1;2;3;4;"]
    protocol.send((b"next",))
    await asyncio.sleep(0)
    assert transport.writes[1:] == [b"next"]
    assert protocol.counters.sent_bytes == 14


@pytest.mark.parametrize(("parts", "buffers"), [([b"x"] * 50, 1), ([b"x" * 50_000] * 3, 3), ([b"x" * 50_000], 1)])
async def test_small_parts_are_joined_and_large_ones_are_not_copied(parts: Sequence[bytes], buffers: int) -> None:
    protocol, transport = connected()
    protocol.send(parts)
    await asyncio.sleep(0)
    assert transport.parts == [buffers]


async def test_what_a_full_transport_does_not_take_leaves_when_it_has_room() -> None:
    protocol, transport = connected()
    protocol.pause_writing()
    protocol.send((b"1",))
    protocol.send((b"2",))
    await asyncio.sleep(0)
    assert transport.writes == []
    protocol.resume_writing()
    assert transport.writes == [b"12"]


async def test_too_much_that_is_unsent_holds_the_connection_until_the_transport_has_room() -> None:
    protocol, transport = connected(unsent_bytes_max=UNSENT_MAX)
    protocol.pause_writing()
    protocol.send((bytes(UNSENT_MAX),))
    assert transport.is_read
    protocol.send((b"x",))
    assert not transport.is_read
    transport.fills_at_once = True
    protocol.resume_writing()
    assert not transport.is_read, "it has written all, and is full again"
    protocol.resume_writing()
    assert transport.is_read
    assert transport.writes == [bytes(UNSENT_MAX) + b"x"]


async def test_progress_is_reported_only_to_a_connection_that_waits_for_it() -> None:
    protocol, _ = connected()
    protocol.send((b"1",))
    await asyncio.sleep(0)
    assert protocol.progress == 0
    protocol._waits_for_room = True
    protocol.send((b"2",))
    await asyncio.sleep(0)
    assert protocol.progress == 1


async def test_what_is_sent_now_does_not_wait_for_the_turn_and_overtakes_nothing() -> None:
    protocol, transport = connected()
    protocol.send_now((b"1",))
    assert transport.writes == [b"1"]
    protocol.send((b"2",))
    protocol.send_now((b"3",))
    assert transport.writes == [b"1"]
    await asyncio.sleep(0)
    assert transport.writes == [b"1", b"23"]
    protocol.pause_writing()
    protocol.send_now((b"4",))
    assert transport.writes == [b"1", b"23"]
    assert protocol.counters.sent_bytes == 3


# --- the end ----------------------------------------------------------------------------------------------------------


async def test_an_abort_handles_and_sends_nothing_more() -> None:
    protocol, transport = connected()
    protocol.on_frame = lambda _: protocol.abort()
    protocol.send((b"unsent",))
    transport.bring(frame(b"1") + frame(b"2"))
    protocol.send((b"late",))
    await asyncio.sleep(0)
    assert (protocol.frames, transport.writes) == ([b"1"], [])
    assert (transport.is_aborted, transport.is_closed) == (True, False)


async def test_a_close_lets_all_that_was_sent_leave_also_through_a_full_transport() -> None:
    protocol, transport = connected()
    protocol.pause_writing()
    protocol.send((b"before",))
    protocol.close()
    assert (transport.writes, transport.is_closed) == ([b"before"], True)
    protocol.send((b"after",))
    transport.bring(frame(b"late"))
    await asyncio.sleep(0)
    assert (transport.writes, protocol.frames) == ([b"before"], [])


@pytest.mark.parametrize("end", [FramedConnection.close, FramedConnection.abort])
async def test_a_connection_that_ends_gives_back_what_it_keeps_of_an_unfinished_frame(
    end: Callable[[FramedConnection], None],
) -> None:
    memory = shared_memory()
    protocol = Protocol(memory)
    Transport(protocol).bring(frame(bytes(BUFFER_BYTES))[:-1])
    assert memory.kept_bytes
    end(protocol)
    assert memory.kept_bytes == memory.unfinished == 0
    memory.close()


async def test_a_connection_that_is_ended_while_it_is_held_is_not_read_again() -> None:
    protocol, transport = connected()
    protocol.hold("a")
    protocol.close()
    protocol.release("a")
    assert not transport.is_read


async def test_the_end_is_reported_once_and_everything_that_waits_for_it_goes_on() -> None:
    protocol, _ = connected()
    waiting = asyncio.ensure_future(protocol.wait_closed())
    await asyncio.sleep(0)
    assert not waiting.done()
    protocol.connection_lost(None)
    await asyncio.wait_for(waiting, 5)
    await asyncio.wait_for(protocol.wait_closed(), 5)
    assert protocol.ends == [None]
    assert (protocol.is_closed, protocol.counters.opened, protocol.counters.closed) == (True, 1, 1)
    protocol.send((b"too late",))
    protocol.release("never held")


@pytest.mark.parametrize(("server", "is_turned_away"), [("bookie", True), ("", False)])
async def test_a_server_turns_a_connection_away_that_takes_a_descriptor_from_the_reserve(
    server: str, is_turned_away: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(descriptors.resource, "getrlimit", lambda _: (1_024, 1_024))
    protocol = Protocol(server=server)
    transport = Transport(protocol, fileno=1_000)
    assert (transport.is_aborted, protocol.counters.turned_away) == (is_turned_away, int(is_turned_away))


# --- keep-alive -------------------------------------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_a_silent_peer_is_pinged_after_one_interval_and_given_up_after_the_next() -> None:
    protocol, transport = connected()
    protocol.is_established = True
    protocol.keep_alive(10.0, PING, protocol.on_silent)
    await asyncio.sleep(11)
    assert transport.writes == []  # It was heard in the interval in which it connected.
    await asyncio.sleep(10)
    assert (transport.writes, protocol.silent) == ([PING], 0)
    await asyncio.sleep(10)
    assert (protocol.silent, transport.is_aborted) == (1, True)
    await asyncio.sleep(100)
    assert (transport.writes, protocol.silent) == ([PING], 1)


@pytest.mark.virtual_time
async def test_a_peer_that_answers_pings_stays() -> None:
    protocol, transport = connected()
    protocol.is_established = True
    protocol.keep_alive(10.0, PING, protocol.on_silent)
    for answered in range(5):
        await until(lambda so_far=answered: len(transport.writes) > so_far, "it is pinged")
        transport.bring(frame(b"pong"))
    assert protocol.silent == 0
    protocol.connection_lost(None)


@pytest.mark.virtual_time
async def test_a_connection_whose_handshake_does_not_end_is_given_up_after_one_interval() -> None:
    protocol, transport = connected()
    protocol.keep_alive(10.0, PING, protocol.on_silent)
    transport.bring(frame(b"no handshake"))
    await asyncio.sleep(11)
    assert (protocol.silent, transport.writes) == (1, [])


async def test_a_connection_that_was_lost_before_its_owner_keeps_it_alive_has_no_timer() -> None:
    """The task that waits for the end of a handshake runs after that end, and maybe after the loss."""
    protocol, _ = connected()
    protocol.is_established = True
    protocol.connection_lost(None)
    protocol.keep_alive(10.0, PING, protocol.on_silent)
    assert protocol._keep_alive is None


@pytest.mark.parametrize(("reason", "is_blamed"), [("disk", False), (UNSENT, True)])
@pytest.mark.virtual_time
async def test_a_peer_that_is_held_is_blamed_for_its_silence_only_if_it_does_not_read(
    reason: str, is_blamed: bool
) -> None:
    protocol, _ = connected()
    protocol.is_established = True
    protocol.keep_alive(10.0, PING, protocol.on_silent)
    protocol.hold(reason)
    await asyncio.sleep(100)
    assert bool(protocol.silent) is is_blamed
    protocol.connection_lost(None)


@pytest.mark.virtual_time
async def test_any_byte_is_a_sign_of_life_and_a_peer_that_gives_none_is_aborted_unless_it_is_held() -> None:
    protocol, transport = connected()
    protocol.keep_alive(1_000.0, PING, protocol.on_silent)
    checks = [asyncio.ensure_future(protocol.check_alive(5.0)) for _ in range(2)]
    await asyncio.sleep(1)
    assert transport.writes == [PING]
    transport.bring(b"\0")
    assert await asyncio.gather(*checks) == [True, True]
    protocol.hold("disk")
    assert await protocol.check_alive(5.0)
    protocol.release("disk")
    assert not await protocol.check_alive(5.0)
    assert transport.is_aborted
    protocol.connection_lost(None)
    assert not await protocol.check_alive(5.0)


# --- listening and dialling -------------------------------------------------------------------------------------------


async def test_two_ends_that_listen_and_dial_exchange_frames() -> None:
    far, near = Protocol(shared_memory(), transport_bytes_high=2**20), Protocol()
    server = await listen(lambda: far, "127.0.0.1", 0, backlog=5, server="bookie", setting="bookie.listen_host")
    await server.start_serving()
    far.on_frame = lambda body: far.send((frame(body.upper()),))
    await dial(lambda: near, "127.0.0.1", server.sockets[0].getsockname()[1])
    near.send((frame(b"hello"), frame(b"x" * 300_000)))
    await until(lambda: len(near.frames) == 2, "both answers have come")
    assert near.frames == [b"HELLO", b"X" * 300_000]
    near.close()
    await asyncio.wait_for(far.wait_closed(), 5)
    await asyncio.wait_for(near.wait_closed(), 5)
    server.close()


def test_a_port_that_is_taken_is_an_error_that_names_the_server_and_its_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as thief:
        port = thief.getsockname()[1]
        taken = listen(Protocol, "127.0.0.1", port, backlog=5, server="broker", setting="pulsar.listen_host")
        with pytest.raises(ListenError, match=rf"the broker cannot listen on 127.0.0.1:{port} .*pulsar.listen_host"):
            asyncio.run(taken)
