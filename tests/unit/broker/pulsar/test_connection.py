from __future__ import annotations

import asyncio

import pytest

from magnetar.broker.pulsar.connection import Connection
from magnetar.config.pulsar import PulsarConfig
from magnetar.runtime.framed_connection import ConnectionCounters
from magnetar.runtime.receiving import ReceiveMemory
from magnetar.testing.waiting import until
from magnetar.wire.pulsar.encode import PING
from magnetar.wire.pulsar.frames import Buffer, FrameDecoder
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand
from tests.unit.broker.pulsar.broker_world import broker_world

pytestmark = pytest.mark.virtual_time


class Transport:
    """Says whether it would read."""

    def __init__(self) -> None:
        self.is_reading = True

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def set_write_buffer_limits(self, high: int) -> None: ...

    def get_extra_info(self, name: str) -> None: ...


class OneFrameAtATime:
    """Holds the connection after each."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.frames = 0

    def on_received(self, buffer: Buffer, start: int, end: int) -> int:
        del buffer
        if end - start < len(PING):
            return start
        self.frames += 1
        self.connection.hold("test")
        return start + len(PING)

    def on_writable(self) -> None: ...

    def on_closed(self) -> None: ...


async def test_a_connection_that_is_held_again_and_again_reads_no_more_before_it_has_handled_what_it_has() -> None:
    memory = ReceiveMemory(2**12, bytes_max=2**20, frame_timeout_s=30, frame_end=FrameDecoder().frame_end)
    connection = Connection(memory, ConnectionCounters(), unsent_bytes_max=2**20, keep_alive_s=60, ping=PING)
    handler, transport = OneFrameAtATime(connection), Transport()
    connection.attach(handler)
    connection.connection_made(transport)  # type: ignore[arg-type]
    received = PING * 5 + PING[:3]
    connection.get_buffer(-1)[: len(received)] = received
    connection.buffer_updated(len(received))
    for frames in range(1, 5):
        assert handler.frames == frames
        connection.release("test")
        assert not transport.is_reading
        await asyncio.sleep(0)
    connection.release("test")
    await asyncio.sleep(0)
    assert handler.frames == 5
    assert transport.is_reading  # For the rest of the sixth.
    connection.connection_lost(None)
    memory.close()


async def test_a_connection_whose_frame_does_not_continue_is_closed_and_others_are_served() -> None:
    async with broker_world(pulsar=PulsarConfig(port=0, receive_bytes_max=2**20, frame_timeout_ms=100)) as world:
        receiving = world.front_end.receiving
        honest = await world.talker()
        silent = [await world.talker() for _ in range(6)]
        for talker in silent:
            talker.write((2**22).to_bytes(4, "big") + bytes(2**19))
        assert (await honest.producer("persistent://public/default/t", 1)).type == BaseCommand.PRODUCER_SUCCESS
        honest.publish(1, 0, b"hello")
        await honest.answer(BaseCommand.SEND_RECEIPT)
        for talker in silent:
            await talker.wait_closed()
        await until(lambda: not receiving.kept_bytes, "all memory is given back")
        assert receiving.timed_out == 6
        assert receiving.held > 0
        assert not honest.closed.is_set()
