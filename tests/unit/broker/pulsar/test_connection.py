from __future__ import annotations

import asyncio

from magnetar.broker.pulsar.connection import Connection, ConnectionCounters, ReceiveBuffer
from magnetar.wire.pulsar.encode import PING
from magnetar.wire.pulsar.frames import Buffer, FrameDecoder


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
        self.connection.hold()
        return start + len(PING)

    def on_writable(self) -> None: ...

    def on_closed(self) -> None: ...


async def test_a_connection_that_is_held_again_and_again_reads_no_more_before_it_has_handled_what_it_has() -> None:
    decoder = FrameDecoder()
    connection = Connection(
        ReceiveBuffer(2**12), ConnectionCounters(), decoder, unsent_bytes_max=2**20, keep_alive_s=60, ping=PING
    )
    handler, transport = OneFrameAtATime(connection), Transport()
    connection.attach(handler)
    connection.connection_made(transport)  # type: ignore[arg-type]
    received = PING * 5 + PING[:3]
    connection.get_buffer(-1)[: len(received)] = received
    connection.buffer_updated(len(received))
    for frames in range(1, 5):
        assert handler.frames == frames
        connection.release()
        assert not transport.is_reading
        await asyncio.sleep(0)
    connection.release()
    await asyncio.sleep(0)
    assert handler.frames == 5
    assert transport.is_reading  # For the rest of the sixth.
    connection.connection_lost(None)
