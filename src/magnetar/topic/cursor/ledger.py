"""CursorLedger: the ledger that a cursor's states are appended to, one whole state per entry; the last one counts.

Invariant: It begins with a first state, so that a cursor's node never points to a ledger that knows less than the node.
Format:    Its metadata has the same words as in Pulsar's, so that Pulsar's tools recognise the ledger.
Read next: ledger_storage.py
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from magnetar.config.cursor import CursorConfig
from magnetar.errors import EntryAbsentError, EntryDamagedError, MagnetarError, NoSuchLedgerError
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.writing.writer import LedgerWriter
from magnetar.metadata.store import MetadataStore
from magnetar.quorum.sizes import QuorumSizes
from magnetar.runtime.runtime import Entropy

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CursorContext:
    """Is shared by the cursors of a topic; they own none of it."""

    client: LedgerClient
    store: MetadataStore
    entropy: Entropy
    sizes: QuorumSizes
    """The same quorums as the topic's own ledgers."""
    config: CursorConfig


class CursorLedger:
    """Is made by `create`; ended by `close`, or by `release` without closing it."""

    def __init__(self, writer: LedgerWriter, config: CursorConfig) -> None:
        """Is called by `create` only."""
        self._writer = writer
        self._entries_max = config.ledger_entries_max
        self._loop = asyncio.get_running_loop()
        self._due_at = self._loop.time() + config.ledger_minutes_max * 60
        self._not_before = 0.0

    @classmethod
    async def create(cls, topic: str, cursor: str, state: bytes, context: CursorContext) -> CursorLedger:
        """Makes a ledger. `cursor` is its encoded name. If it raises, no ledger is left, or one that no node names."""
        sizes = context.sizes
        writer = await context.client.create(
            ensemble_size=sizes.ensemble,
            write_quorum=sizes.write,
            ack_quorum=sizes.ack,
            custom_metadata={
                "application": b"pulsar",
                "component": b"managed-ledger",
                "pulsar/managed-ledger": topic.encode(),
                "pulsar/cursor": cursor.encode(),
            },
        )
        try:
            await writer.add(state)
        except BaseException:
            await writer.release()
            await delete_quietly(writer.ledger_id, context.client)
            raise
        return cls(writer, context.config)

    @property
    def ledger_id(self) -> int:
        return self._writer.ledger_id

    @property
    def last_entry(self) -> int:
        return self._writer.last_confirmed

    @property
    def is_due(self) -> bool:
        """Whether it should be replaced, because it is long or old."""
        now = self._loop.time()
        return (self.last_entry + 1 >= self._entries_max or now >= self._due_at) and now >= self._not_before

    def postpone(self, seconds: float) -> None:
        """Delays the replacement, after one that failed."""
        self._not_before = self._loop.time() + seconds

    async def append(self, state: bytes) -> None:
        await self._writer.add(state)

    async def close(self) -> None:
        await self._writer.close()

    async def release(self) -> None:
        await self._writer.release()


async def last_state(ledger_id: int, client: LedgerClient) -> bytes | None:
    """Takes the ledger from its writer. Returns None if it is lost or empty; raises if it may come back."""
    try:
        reader = await client.open(ledger_id)
        last = reader.last_confirmed
        if last < 0:
            log.warning("a cursor's ledger is empty", extra={"ledger_id": ledger_id})
            return None
        return bytes((await reader.read(last, last))[0].payload)
    except (NoSuchLedgerError, EntryAbsentError, EntryDamagedError) as error:
        log.error("a cursor's ledger is lost", extra={"ledger_id": ledger_id, "why": str(error)})
        return None


async def delete_quietly(ledger_id: int, client: LedgerClient) -> bool:
    """Returns whether the ledger is deleted."""
    try:
        await client.delete(ledger_id)
    except NoSuchLedgerError:
        return True
    except MagnetarError as error:
        log.warning("a cursor's old ledger was not deleted", extra={"ledger_id": ledger_id, "why": str(error)})
        return False
    return True
