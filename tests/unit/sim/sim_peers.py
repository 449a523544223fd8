"""Protocols for tests of the simulated network that note everything they see."""

from __future__ import annotations

import asyncio
from typing import Any


class Peer(asyncio.Protocol):
    def __init__(self, *, keeps_open: bool = False) -> None:
        self.loop = asyncio.get_running_loop()
        self.received = bytearray()
        self.chunks: list[bytes] = []
        self.events: list[str] = []
        self.error: Exception | None = None
        self.lost = self.loop.create_future()
        self.changed = asyncio.Event()
        self._keeps_open = keeps_open

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport  # uvloop's has the methods, but not the base class.
        self._note("made")

    def data_received(self, data: bytes) -> None:
        assert self.events[0] == "made", "nothing arrives before the connection is made"
        self.received += data
        self.chunks.append(bytes(data))
        self.changed.set()

    def eof_received(self) -> bool:
        self._note("end")
        return self._keeps_open

    def pause_writing(self) -> None:
        self._note("pause")

    def resume_writing(self) -> None:
        self._note("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.error = exc
        self._note("lost")
        self.lost.set_result(None)

    def _note(self, event: str) -> None:
        self.events.append(event)
        self.changed.set()

    async def wait_for(self, event: str, *, seconds: float = 20.0) -> None:
        async with asyncio.timeout(seconds):
            while event not in self.events:
                self.changed.clear()
                await self.changed.wait()

    async def wait_bytes(self, count: int, *, seconds: float = 20.0) -> bytes:
        async with asyncio.timeout(seconds):
            while len(self.received) < count:
                self.changed.clear()
                await self.changed.wait()
        return bytes(self.received)


class BufferedPeer(asyncio.BufferedProtocol, Peer):  # type: ignore[misc]
    """Reads into a buffer that is smaller than most chunks."""

    def __init__(self) -> None:
        super().__init__()
        self._buffer = bytearray(100)

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        assert 0 < nbytes <= 100
        Peer.data_received(self, bytes(self._buffer[:nbytes]))


class Echo(Peer):
    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.transport.write(data)
