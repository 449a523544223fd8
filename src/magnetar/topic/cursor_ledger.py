"""CursorLedger: the ledger that a cursor's states are appended to, one whole state per entry; the last one counts.

Begun:     with a first state, so that a cursor's node never points to a ledger that knows less than the node.
Metadata:  the same words as in Pulsar's, so that its tools know whose ledger it is.
Read next: cursor_home.py
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from magnetar.config.cursor import CursorConfig
from magnetar.errors import EntryAbsentError, EntryDamagedError, MagnetarError, NoSuchLedgerError
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.writer import LedgerWriter
from magnetar.metadata.store import MetadataStore
from magnetar.quorum.sizes import QuorumSizes
from magnetar.runtime.entropy import Entropy

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CursorParts:
    """Shared by the cursors of a topic; they own none of it."""

    client: LedgerClient
    store: MetadataStore
    entropy: Entropy
    sizes: QuorumSizes
    """As the topic's own ledgers have them."""
    config: CursorConfig


class CursorLedger:
    """Made by `create`; ended by `close`, or by `release` without closing it."""

    def __init__(self, writer: LedgerWriter, config: CursorConfig) -> None:
        """For `create` only."""
        self._writer = writer
        self._entries_max = config.ledger_entries_max
        self._loop = asyncio.get_running_loop()
        self._due_at = self._loop.time() + config.ledger_minutes_max * 60
        self._not_before = 0.0

    @classmethod
    async def create(cls, topic: str, cursor: str, state: bytes, parts: CursorParts) -> CursorLedger:
        """`cursor` is its encoded name. If it raises, no ledger is left, or one that nobody knows of."""
        sizes = parts.sizes
        writer = await parts.client.create(
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
            await delete_quietly(writer.ledger_id, parts.client)
            raise
        return cls(writer, parts.config)

    @property
    def ledger_id(self) -> int:
        return self._writer.ledger_id

    @property
    def last_entry(self) -> int:
        return self._writer.last_confirmed

    @property
    def is_due(self) -> bool:
        """Whether it should be replaced: it is long, or old."""
        now = self._loop.time()
        return (self.last_entry + 1 >= self._entries_max or now >= self._due_at) and now >= self._not_before

    def postpone(self, seconds: float) -> None:
        """It could not be replaced: not due again before that."""
        self._not_before = self._loop.time() + seconds

    async def append(self, state: bytes) -> None:
        await self._writer.add(state)

    async def close(self) -> None:
        await self._writer.close()

    async def release(self) -> None:
        await self._writer.release()


async def last_state(ledger_id: int, client: LedgerClient) -> bytes | None:
    """Takes the ledger from whoever writes to it. None if it is lost, or empty; what may come back raises."""
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
    """Whether it is gone."""
    try:
        await client.delete(ledger_id)
    except NoSuchLedgerError:
        return True
    except MagnetarError as error:
        log.warning("a cursor's old ledger is left", extra={"ledger_id": ledger_id, "why": str(error)})
        return False
    return True
