"""Reads staged entries in the order in which they are published: chunk by chunk, with the next one read ahead.

Invariant: each ledger is closed and has as many entries as its task wrote; if it is read whole, its checksum is right.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from magnetar.errors import StagingError
from magnetar.ledger.client import LedgerClient
from magnetar.staging.records import StagedPart, checksum_of
from magnetar.wire.bookkeeper.frames import Buffer

Chunk = Sequence[Buffer]


async def staged_chunks(
    ledgers: LedgerClient, parts: Sequence[StagedPart], skip: int = 0
) -> AsyncGenerator[Chunk, None]:
    """Yields the entries of all parts but the first `skip`. Close it (`aclosing`), if it is not read to its end."""
    chunks = _chunks(ledgers, parts, skip)
    ahead = _start(chunks)
    try:
        while (chunk := await ahead) is not None:
            ahead = _start(chunks)
            yield chunk
    finally:
        ahead.cancel()
        await asyncio.gather(ahead, return_exceptions=True)
        await chunks.aclose()


def _start(chunks: AsyncGenerator[Chunk, None]) -> asyncio.Task[Chunk | None]:
    return asyncio.get_running_loop().create_task(_next(chunks))


async def _next(chunks: AsyncGenerator[Chunk, None]) -> Chunk | None:
    return await anext(chunks, None)


async def _chunks(ledgers: LedgerClient, parts: Sequence[StagedPart], skip: int) -> AsyncGenerator[Chunk, None]:
    for part in parts:
        if skip >= part.entries:
            skip -= part.entries
            continue
        async for chunk in _part(ledgers, part, skip):
            yield chunk
        skip = 0


async def _part(ledgers: LedgerClient, part: StagedPart, first: int) -> AsyncGenerator[Chunk, None]:
    reader = await ledgers.open_no_recovery(part.ledger_id)
    if not reader.is_closed or reader.last_confirmed + 1 != part.entries:
        raise StagingError(
            f"ledger {part.ledger_id} has {reader.last_confirmed + 1} entries, and {part.entries} were staged in it"
        )
    checksum = 0 if not first else None
    last = part.entries - 1
    while first <= last:
        entries = await reader.read_some(first, last)
        payloads = [entry.payload for entry in entries]
        if checksum is not None:
            for payload in payloads:
                checksum = checksum_of(payload, checksum)
        first += len(payloads)
        if first > last and checksum not in (None, part.checksum):  # Before its last chunk is returned.
            raise StagingError(
                f"the content of ledger {part.ledger_id} is not what was staged in it: the checksums differ"
            )
        yield payloads
