"""A load generator for any server that speaks BookKeeper's compact protocol: keeps so many adds in flight.

Entries:   payload and digest follow from ledger and entry id, so whoever reads them back knows what they must be.
Counting:  an entry is acknowledged when its answer says so, and only then; what was on its way when the connection
           broke is neither acknowledged nor refused.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Final

from magnetar.errors import RemoteProtocolError
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.digests import DigestType, entry_digest, master_key
from magnetar.wire.bookkeeper.ends import decode_response, encode_request
from magnetar.wire.bookkeeper.hot_path import AddEncoder, scan_add_responses
from magnetar.wire.bookkeeper.messages import V2, ReadEntry, ReadResponse

PASSWORD: Final = b""
_PATTERN = struct.Struct(">qq")
_DIGEST = entry_digest(DigestType.CRC32C)
_KEY = master_key(PASSWORD)


def payload_of(ledger_id: int, entry_id: int, size: int) -> bytes:
    pattern = _PATTERN.pack(ledger_id, entry_id)
    return (pattern * (size // len(pattern) + 1))[:size]


class BookieLoad(asyncio.Protocol):
    """One connection, one ledger. Made by `connect`."""

    def __init__(self, ledger_id: int, entry_bytes: int) -> None:
        self.ledger_id = ledger_id
        self.entry_bytes = entry_bytes
        self.acknowledged: list[int] = []
        self.refused: list[tuple[int, Code]] = []
        self.sent = 0
        self.first_entry = 0
        self._encoder = AddEncoder(ledger_id, _KEY, _DIGEST)
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self._in_flight_max = 0
        self._reads: dict[int, asyncio.Future[ReadResponse]] = {}
        self._changed = asyncio.Event()
        self.is_lost = False

    @classmethod
    async def connect(cls, host: str, port: int, ledger_id: int, *, entry_bytes: int = 100) -> BookieLoad:
        loop = asyncio.get_running_loop()
        _, load = await loop.create_connection(lambda: cls(ledger_id, entry_bytes), host, port)
        return load

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's has the methods, but not the base class.

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.is_lost = True
        self._transport = None
        self._changed.set()
        for waiting in self._reads.values():
            if not waiting.done():
                waiting.set_exception(RemoteProtocolError("the connection was lost"))

    # --- adding -------------------------------------------------------------------------------------------------------

    def begin(self, in_flight: int, first_entry: int = 0) -> None:
        """Keeps so many adds in flight from now on."""
        self._in_flight_max = in_flight
        self.first_entry = first_entry
        self._fill()

    def finish(self) -> None:
        """Sends no more."""
        self._in_flight_max = 0

    @property
    def in_flight(self) -> int:
        return self.sent - len(self.acknowledged) - len(self.refused)

    async def wait_for(self, condition: Callable[[BookieLoad], bool], *, seconds: float = 60.0) -> None:
        """Until the condition holds or the connection is lost."""
        async with asyncio.timeout(seconds):
            while not condition(self) and not self.is_lost:
                self._changed.clear()
                await self._changed.wait()

    def _fill(self) -> None:
        frames: list[bytes] = []
        while self.in_flight < self._in_flight_max:
            entry_id = self.first_entry + self.sent
            payload = payload_of(self.ledger_id, entry_id, self.entry_bytes)
            lac = self.first_entry + len(self.acknowledged) - 1
            frames += (self._encoder.header(entry_id, lac, (entry_id + 1) * self.entry_bytes, payload), payload)
            self.sent += 1
        if frames and self._transport is not None:
            self._transport.writelines(frames)

    def data_received(self, data: bytes) -> None:
        self._received += data
        at = self._take_adds(0)
        while (decoded := decode_response(self._received, at, len(self._received), V2)) is not None:
            assert isinstance(decoded.response, ReadResponse)
            waiting = self._reads.pop(decoded.response.entry_id, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(decoded.response)
            at = self._take_adds(decoded.end)
        del self._received[:at]
        self._changed.set()
        self._fill()

    def _take_adds(self, at: int) -> int:
        run = scan_add_responses(self._received, at, len(self._received))
        for code, entry_id in zip(run.codes, run.entry_ids, strict=True):
            if code == Code.EOK:
                self.acknowledged.append(entry_id)
            else:
                self.refused.append((entry_id, Code(code)))
        return run.end

    # --- reading back -------------------------------------------------------------------------------------------------

    async def read(self, entry_id: int) -> tuple[Code, bytes]:
        """The payload, its digest verified."""
        assert self._transport is not None, "not connected"
        waiting: asyncio.Future[ReadResponse] = asyncio.get_running_loop().create_future()
        self._reads[entry_id] = waiting
        self._transport.write(encode_request(ReadEntry(self.ledger_id, entry_id, version=V2)))
        async with asyncio.timeout(30):
            response = await waiting
        if response.code is not Code.EOK:
            return response.code, b""
        return Code.EOK, bytes(_DIGEST.open(self.ledger_id, entry_id, response.body).payload)

    async def wrong_entries(self, entry_ids: list[int]) -> list[int]:
        """Those that are not there, or not what was sent."""
        wrong: list[int] = []
        for at in range(0, len(entry_ids), 500):
            part = entry_ids[at : at + 500]
            for entry_id, (code, payload) in zip(part, await asyncio.gather(*map(self.read, part)), strict=True):
                if code is not Code.EOK or payload != payload_of(self.ledger_id, entry_id, self.entry_bytes):
                    wrong.append(entry_id)
        return wrong

    async def aclose(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        await self.wait_for(lambda load: load.is_lost)
