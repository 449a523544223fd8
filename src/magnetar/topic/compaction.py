"""Compaction of a topic: for every key, only its last message is kept, in a ledger of its own beside the topic.

Two phases: the first goes through the topic and notes where the last message of each key is; the second goes through it
           again and writes those to a new ledger, in order. Both begin with what the compaction before has left, so
           what was trimmed away in between is not needed. Memory: a position and a key per key, no payloads.
Kept:      the cursor `__compaction` names the ledger (property `CompactedTopicLedger`), and stands at the last entry
           that was looked at: nothing behind it is trimmed before it is compacted. Both are stored in one write, and
           only then is the ledger before it deleted. Everything is as Apache's compactor has it.
Reading:   up to the cursor's position from the compacted ledger, behind it from the topic (`read`). The topic itself
           is not changed: who does not ask for the compacted view sees all that is not trimmed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, Protocol

from magnetar.config.topic import TopicConfig
from magnetar.errors import CompactionError, MalformedEntryError, NoSuchLedgerError
from magnetar.ledger.writer import LedgerWriter
from magnetar.topic.chain import LedgerChain, LedgerSpan
from magnetar.topic.compacted_entries import (
    NO_BATCH,
    encode_compacted,
    encode_message_id,
    filtered_batch,
    is_marker,
    is_readable_batch,
    keys_of,
)
from magnetar.topic.compacted_ledger import COMPACTED_DIGEST, CompactedLedger
from magnetar.topic.compacted_output import CompactedOutput
from magnetar.topic.log import TopicLog
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.log_parts import LogParts
from magnetar.topic.position import EARLIEST, Position
from magnetar.topic.switching import delete_ledgers

log = logging.getLogger(__name__)

COMPACTION_CURSOR: Final = "__compaction"
LEDGER_PROPERTY: Final = "CompactedTopicLedger"
_READ_ENTRIES: Final = 500
_READ_BYTES: Final = 2**20

Place = tuple[int, int, int]  # Ledger, entry, index in its batch.


class CompactionCursor(Protocol):
    """What is needed of the cursor `__compaction`."""

    @property
    def mark_delete(self) -> Position: ...
    @property
    def long_properties(self) -> Mapping[str, int]: ...
    def set_long_properties(self, properties: Mapping[str, int]) -> None: ...
    def acknowledge_to(self, position: Position) -> None: ...
    async def flush(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionResult:
    ledger_id: int
    """-1: there was nothing to compact."""
    entries_read: int
    entries_written: int
    keys: int


class TopicCompaction:
    """Of one topic: what was compacted, and compacting more. It reads like a log (see broker/dispatch)."""

    def __init__(self, topic: str, topic_log: TopicLog, parts: LogParts, config: TopicConfig) -> None:
        """`topic` is the name that users know."""
        self._topic = topic
        self._log = topic_log
        self._parts = parts
        self._config = config
        self._compacted: CompactedLedger | None = None
        self._is_running = False

    @property
    def is_running(self) -> bool:
        return self._is_running

    @property
    def compacted(self) -> CompactedLedger | None:
        """The ledger that holds what was compacted."""
        return self._compacted

    async def restore(self, cursor: CompactionCursor) -> None:
        """When a topic is opened that has this cursor."""
        ledger_id = cursor.long_properties.get(LEDGER_PROPERTY)
        if ledger_id is None:
            return
        try:
            self._compacted = await CompactedLedger.open(self._parts.client, ledger_id, cursor.mark_delete)
        except NoSuchLedgerError:
            log.error("a compacted ledger is gone", extra={"topic": self._topic, "ledger_id": ledger_id})

    # --- the compacted view -------------------------------------------------------------------------------------------

    @property
    def chain(self) -> LedgerChain:
        return self._log.chain

    @property
    def last_confirmed(self) -> Position:
        horizon = self._compacted.horizon if self._compacted is not None else EARLIEST
        return max(self._log.last_confirmed, horizon)

    @property
    def is_terminated(self) -> bool:
        return self._log.is_terminated

    def read_nowait(self, first: Position, entries_max: int, bytes_max: int) -> list[LogEntry] | None:
        if self._compacted is not None:
            if not self._compacted.is_behind_all(first):
                return None
            first = max(first, self._compacted.behind_horizon)
        return self._log.read_nowait(first, entries_max, bytes_max)

    async def read(self, first: Position, entries_max: int, bytes_max: int) -> list[LogEntry]:
        """As `TopicLog.read`. Positions may be of ledgers that the topic no longer has: who goes on does so at the next
        entry id, and not at the chain's next position."""
        compacted = self._compacted
        if compacted is not None and first <= compacted.horizon:
            entries = await compacted.read(first, entries_max, bytes_max)
            if entries:
                return entries
            first = compacted.behind_horizon
        return await self._log.read(first, entries_max, bytes_max)

    def watch_tail(self, callback: Callable[[], None]) -> None:
        self._log.watch_tail(callback)

    def unwatch_tail(self, callback: Callable[[], None]) -> None:
        self._log.unwatch_tail(callback)

    async def position_at_time(self, publish_ms: int) -> Position:
        return await self._log.position_at_time(publish_ms)

    # --- compacting ---------------------------------------------------------------------------------------------------

    async def run(self, cursor: CompactionCursor) -> CompactionResult:
        """Everything that is confirmed now. CompactionError if it runs already; if it raises, nothing was changed."""
        if self._is_running:
            raise CompactionError(f"topic {self._topic} is being compacted already")
        self._is_running = True
        try:
            return await self._run(cursor)
        finally:
            self._is_running = False

    async def _run(self, cursor: CompactionCursor) -> CompactionResult:
        up_to = self._log.last_confirmed
        before = self._compacted
        if up_to.entry_id < 0 or (before is not None and up_to <= before.horizon):
            return CompactionResult(ledger_id=-1, entries_read=0, entries_written=0, keys=0)
        latest, entries_read = await self._latest(up_to)
        writer = await self._make_ledger(up_to)
        try:
            written = await self._write(latest, up_to, writer)
            await writer.close()
            compacted = await CompactedLedger.open(self._parts.client, writer.ledger_id, up_to)
        except BaseException:
            await writer.release()
            await delete_ledgers(self._parts.client, [LedgerSpan(writer.ledger_id)])
            raise
        await self._adopt(compacted, cursor)
        if before is not None:
            await delete_ledgers(self._parts.client, [LedgerSpan(before.ledger_id)])
        log.info(
            "a topic is compacted", extra={"topic": self._topic, "ledger_id": writer.ledger_id, "entries": written}
        )
        return CompactionResult(
            ledger_id=writer.ledger_id, entries_read=entries_read, entries_written=written, keys=len(latest)
        )

    async def _adopt(self, compacted: CompactedLedger, cursor: CompactionCursor) -> None:
        """First readers, then the cursor: once that has moved, the topic may be trimmed under them."""
        self._compacted = compacted
        cursor.set_long_properties({**cursor.long_properties, LEDGER_PROPERTY: compacted.ledger_id})
        cursor.acknowledge_to(compacted.horizon)
        await cursor.flush()

    async def _make_ledger(self, up_to: Position) -> LedgerWriter:
        config = self._config
        return await self._parts.client.create(
            ensemble_size=config.ensemble_size,
            write_quorum=config.write_quorum,
            ack_quorum=config.ack_quorum,
            digest_type=COMPACTED_DIGEST,
            custom_metadata={
                "application": b"pulsar",
                "component": b"compacted-ledger",
                "pulsar/compactedTopic": self._topic.encode(),
                "pulsar/compactedTo": encode_message_id(up_to),
            },
        )

    async def _entries(self, up_to: Position) -> AsyncGenerator[LogEntry, None]:
        """Of the compacted view, as it is without what comes meanwhile."""
        place = EARLIEST
        while entries := await self.read(place, _READ_ENTRIES, _READ_BYTES):
            for entry in entries:
                if entry.position > up_to:
                    return
                yield entry
            place = Position(entry.position.ledger_id, entry.position.entry_id + 1)
            await asyncio.sleep(0)  # What comes from memory does not wait for anybody, but others do.

    async def _latest(self, up_to: Position) -> tuple[dict[str, Place], int]:
        """Phase one: where the last message of each key is."""
        latest: dict[str, Place] = {}
        count = 0
        async with aclosing(self._entries(up_to)) as entries:
            async for entry in entries:
                count += 1
                _note_keys(entry, latest)
        return latest, count

    async def _write(self, latest: dict[str, Place], up_to: Position, writer: LedgerWriter) -> int:
        """Phase two: those messages, in the order of the topic."""
        output = CompactedOutput(writer)
        async with aclosing(self._entries(up_to)) as entries:
            async for entry in entries:
                kept = self._kept(entry, latest)
                if kept is not None:
                    await output.put(encode_compacted(entry.position, kept))
        await output.flush()
        return output.entries

    def _kept(self, entry: LogEntry, latest: dict[str, Place]) -> bytes | memoryview | bytearray | None:
        """What is left of an entry."""
        keeps_null = self._config.compaction_retain_null_key
        position = entry.position

        def is_kept(index: int, key: str | None) -> bool:
            return keeps_null if key is None else latest.get(key) == (*position, index)

        try:
            if is_marker(entry):
                return None
            if is_readable_batch(entry.head.metadata):
                return filtered_batch(entry, is_kept)
            return entry.data if is_kept(NO_BATCH, keys_of(entry)[0].key) else None
        except MalformedEntryError as error:
            log.warning("an entry is kept as it is", extra={"topic": self._topic, "why": str(error)})
            return entry.data

    async def delete(self) -> None:
        """The compacted ledger, of a topic or of a cursor that is deleted."""
        compacted, self._compacted = self._compacted, None
        if compacted is not None:
            await delete_ledgers(self._parts.client, [LedgerSpan(compacted.ledger_id)])


def _note_keys(entry: LogEntry, latest: dict[str, Place]) -> None:
    try:
        keys = [] if is_marker(entry) else keys_of(entry)
    except MalformedEntryError:
        return
    for index, key, size in keys:
        if key is None:
            continue
        if size:
            latest[key] = (*entry.position, index)
        else:
            latest.pop(key, None)
