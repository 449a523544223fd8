"""What tests of channels share: listeners that remember, adds to send, and servers that are no good bookies."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from magnetar.config.ledger import LedgerConfig
from magnetar.errors import MagnetarError
from magnetar.ids import BookieId
from magnetar.ledger.channels.channel import Channel, Dial
from magnetar.ledger.channels.connection import Connection
from magnetar.wire.bookkeeper.digests import DigestType, entry_digest, master_key
from magnetar.wire.bookkeeper.frames import Buffer
from magnetar.wire.bookkeeper.hot_path import AddEncoder

KEY = master_key(b"secret")
DIGEST = entry_digest(DigestType.CRC32C)
CONFIG = LedgerConfig(connect_timeout_ms=2_000)
SECONDS = 10.0
"""For what must happen; nothing here takes a second."""


def add_frames(ledger_id: int, entry_ids: Sequence[int], payload: bytes = b"payload") -> list[Buffer]:
    encoder = AddEncoder(ledger_id, KEY, DIGEST)
    frames: list[Buffer] = []
    for entry_id in entry_ids:
        frames += (encoder.header(entry_id, entry_id - 1, len(payload), payload), payload)
    return frames


def payload_of(ledger_id: int, entry_id: int, body: Buffer) -> bytes:
    return bytes(DIGEST.open(ledger_id, entry_id, body).payload)


class Writer:
    """Remembers every call."""

    def __init__(self) -> None:
        self.runs: list[tuple[list[int], list[int]]] = []
        self.losses: list[MagnetarError] = []
        self.rooms = 0

    def on_add_answers(self, channel: Channel, entry_ids: Sequence[int], codes: Sequence[int]) -> None:
        self.runs.append((list(entry_ids), list(codes)))

    def on_channel_lost(self, channel: Channel, error: MagnetarError) -> None:
        assert channel.is_lost
        self.losses.append(error)

    def on_writable(self, channel: Channel) -> None:
        assert channel.is_writable
        self.rooms += 1

    @property
    def answers(self) -> dict[int, int]:
        return {entry_id: code for ids, codes in self.runs for entry_id, code in zip(ids, codes, strict=True)}


class Reader:
    def __init__(self) -> None:
        self.runs: list[list[int]] = []
        self.answers: dict[int, tuple[int, Buffer]] = {}
        self.failures: list[tuple[list[int], MagnetarError]] = []

    def on_read_answers(
        self, channel: Channel, entry_ids: Sequence[int], codes: Sequence[int], bodies: Sequence[Buffer]
    ) -> None:
        self.runs.append(list(entry_ids))
        for entry_id, code, body in zip(entry_ids, codes, bodies, strict=True):
            assert entry_id not in self.answers, "told twice"
            self.answers[entry_id] = (code, body)

    def on_reads_failed(self, channel: Channel, entry_ids: Sequence[int], error: MagnetarError) -> None:
        self.failures.append((list(entry_ids), error))


def tcp_dial(port: int) -> Dial:
    async def dial(make: Callable[[], Connection]) -> None:
        await asyncio.get_running_loop().create_connection(make, "127.0.0.1", port)

    return dial


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def bad_bookie(serve: Serve, config: LedgerConfig = CONFIG) -> AsyncIterator[Channel]:
    """A channel to a server that does what a bookie should not."""
    tasks: list[asyncio.Task[None]] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await serve(reader, writer)
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    channel = await Channel.connect(BookieId("bad:1"), config, tcp_dial(server.sockets[0].getsockname()[1]))
    try:
        yield channel
    finally:
        await channel.aclose()
        server.close()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await server.wait_closed()


async def read_for_ever(reader: asyncio.StreamReader) -> None:
    while await reader.read(2**16):
        pass
