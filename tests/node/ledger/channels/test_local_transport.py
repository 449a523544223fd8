"""The in-process transport keeps TCP's promises; the channel's own suite runs on it too."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from magnetar.ledger.channels.local_transport import LocalTransport, connect_local
from magnetar.testing.waiting import until


class End(asyncio.BufferedProtocol):
    """Collects what it receives, into a buffer of any size."""

    def __init__(self, buffer_bytes: int = 1_000) -> None:
        self.received = bytearray()
        self.reads: list[int] = []
        self.calls: list[str] = []
        self.losses: list[Exception | None] = []
        self.on_data: Callable[[], None] = lambda: None
        self._buffer = bytearray(buffer_bytes)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, LocalTransport)
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.losses.append(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self._buffer[:nbytes]
        self.reads.append(nbytes)
        self.on_data()

    def pause_writing(self) -> None:
        self.calls.append("pause")

    def resume_writing(self) -> None:
        self.calls.append("resume")


def pair(buffer_bytes: int = 1_000) -> tuple[End, End]:
    near, far = End(buffer_bytes), End(buffer_bytes)
    connect_local(lambda: far, lambda: near)
    return near, far


async def test_bytes_arrive_in_order_and_once_both_ways() -> None:
    near, far = pair(buffer_bytes=17)
    numbers = random.Random(1)
    sent = {near: bytearray(), far: bytearray()}
    for _ in range(200):
        end = numbers.choice((near, far))
        data = numbers.randbytes(numbers.randrange(60))
        sent[end] += data
        if numbers.random() < 0.5:
            end.transport.write(data)
        else:
            end.transport.writelines([data[:5], b"", memoryview(data)[5:]])
        if numbers.random() < 0.2:
            await asyncio.sleep(0)
    await until(lambda: far.received == sent[near] and near.received == sent[far], "everything has arrived")
    assert max(near.reads + far.reads) <= 17


async def test_nothing_is_delivered_from_inside_a_write() -> None:
    near, far = pair()
    near.transport.write(b"x")
    assert far.received == b""
    await asyncio.sleep(0)
    assert far.received == b"x"


async def test_a_buffer_that_changes_after_the_write_does_not_matter() -> None:
    near, far = pair()
    data = bytearray(b"before")
    near.transport.writelines([data, memoryview(data)])
    data[:] = b"after!"
    await until(lambda: len(far.received) == 12, "it has arrived")
    assert far.received == b"beforebefore"


async def test_a_reader_that_pauses_gets_nothing_and_slows_the_writer_down() -> None:
    near, far = pair()
    near.transport.set_write_buffer_limits(high=2_000, low=500)
    assert near.transport.get_write_buffer_limits() == (500, 2_000)
    far.transport.pause_reading()
    assert not far.transport.is_reading()
    near.transport.write(bytes(2_000))
    assert near.calls == []
    near.transport.write(bytes(1_500))
    near.transport.write(bytes(1))
    assert near.calls == ["pause"]
    await asyncio.sleep(0)
    assert far.received == b""
    assert near.transport.get_write_buffer_size() == 3_501
    far.transport.resume_reading()
    await until(lambda: len(far.received) == 3_501, "everything has arrived")
    await until(lambda: near.calls == ["pause", "resume"], "the writer may go on")


async def test_a_reader_that_pauses_after_the_write_and_before_the_delivery_gets_nothing() -> None:
    near, far = pair()
    near.transport.write(b"x")
    far.transport.pause_reading()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert far.received == b""
    far.transport.resume_reading()
    await until(lambda: far.received == b"x", "it has arrived")


async def test_a_reader_may_pause_in_the_middle_of_what_arrives() -> None:
    near, far = pair(buffer_bytes=10)
    far.on_data = far.transport.pause_reading
    near.transport.write(bytes(25))
    for received in (10, 20, 25):
        await until(lambda received=received: len(far.received) == received, "one buffer has arrived")
        await asyncio.sleep(0)
        assert len(far.received) == received
        far.transport.resume_reading()


async def test_a_close_lets_what_was_written_arrive_and_is_told_once_to_both() -> None:
    near, far = pair(buffer_bytes=10)
    near.transport.write(bytes(35))
    near.transport.close()
    near.transport.close()
    near.transport.write(b"too late")
    assert near.transport.is_closing()
    await until(lambda: far.losses and near.losses, "both ends have heard of it")
    assert len(far.received) == 35
    far.transport.close()
    far.transport.abort()
    await asyncio.sleep(0)
    assert (near.losses, far.losses) == ([None], [None])


async def test_an_abort_loses_what_was_on_its_way_and_is_told_once_to_both() -> None:
    near, far = pair()
    near.transport.write(b"lost")
    far.transport.write(b"lost too")
    near.transport.abort()
    await until(lambda: far.losses and near.losses, "both ends have heard of it")
    await asyncio.sleep(0)
    assert (near.received, far.received) == (b"", b"")
    assert near.losses == [None]
    assert [type(error) for error in far.losses] == [ConnectionResetError]


async def test_both_may_close_at_once() -> None:
    near, far = pair()
    near.transport.close()
    far.transport.close()
    await until(lambda: far.losses and near.losses, "both ends have heard of it")
    await asyncio.sleep(0)
    assert (near.losses, far.losses) == ([None], [None])


async def test_a_protocol_that_fails_loses_its_connection_and_nothing_else() -> None:
    loop = asyncio.get_running_loop()
    reported: list[dict[str, object]] = []
    loop.set_exception_handler(lambda _, context: reported.append(context))
    near, far = pair()

    def fail() -> None:
        raise ZeroDivisionError

    far.on_data = fail
    near.transport.write(b"x")
    await until(lambda: far.losses and near.losses, "both ends have heard of it")
    assert [type(context["exception"]) for context in reported] == [ZeroDivisionError]


async def test_a_busy_pair_leaves_turns_to_others() -> None:
    near, far = pair(buffer_bytes=10)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while len(far.received) < 1_000:
            turns += 1
            await asyncio.sleep(0)

    near.transport.write(bytes(1_000))
    await other()
    assert turns >= 50


async def test_a_refused_connection_makes_no_near_end() -> None:
    def refuse() -> End:
        raise ConnectionRefusedError

    with pytest.raises(ConnectionRefusedError):
        connect_local(refuse, lambda: pytest.fail("nothing to connect to"))
