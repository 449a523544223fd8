"""Compaction of a topic: for every key, only its last message is kept, in a ledger of its own beside the topic.

The first of two phases reads the topic and notes where the last message of each key is; the second reads it again and
writes those messages to a new ledger, in order (choice.py). Both begin with what the previous compaction has left, so
what was trimmed meanwhile is not needed.

Readers of the compacted view read the compacted ledger up to the cursor's position, and the topic after it (`read`).
The topic itself does not change, so other readers see all that is not trimmed.

Invariant: The cursor `__compaction` names the ledger (property `CompactedTopicLedger`), and stands at the last entry
           that was looked at: no later entry is trimmed before it is compacted. Both are stored in one write, and only
           then is the previous ledger deleted, as Apache's compactor does.
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
from magnetar.ledger.writing.writer import LedgerWriter
from magnetar.topic.chain import LedgerChain, LedgerSpan
from magnetar.topic.compaction.choice import CompactionChoice
from magnetar.topic.compaction.compacted_ledger import COMPACTED_DIGEST, CompactedLedger, CompactedOutput
from magnetar.topic.entry_format.compacted import encode_compacted, encode_message_id
from magnetar.topic.log.context import LogContext
from magnetar.topic.log.ledger_roller import delete_ledgers
from magnetar.topic.log.log import TopicLog
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import EARLIEST, Position
from magnetar.wire.bookkeeper.frames import Buffer

log = logging.getLogger(__name__)

COMPACTION_CURSOR: Final = "__compaction"
LEDGER_PROPERTY: Final = "CompactedTopicLedger"
_READ_ENTRIES: Final = 500
_READ_BYTES: Final = 2**20


class CompactionCursor(Protocol):
    """What compaction needs of the cursor `__compaction`."""

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
    """-1 if there was nothing to compact."""
    entries_read: int
    entries_written: int
    keys: int


class TopicCompaction:
    """Knows what of a topic was compacted, and compacts more. It reads like a log (see broker/dispatch)."""

    def __init__(self, topic: str, topic_log: TopicLog, context: LogContext, config: TopicConfig) -> None:
        """`topic` is the name that users know."""
        self._topic = topic
        self._log = topic_log
        self._context = context
        self._config = config
        self._compacted: CompactedLedger | None = None
        self._is_running = False

    @property
    def is_running(self) -> bool:
        return self._is_running

    @property
    def compacted(self) -> CompactedLedger | None:
        """The ledger that holds what was compacted, or None."""
        return self._compacted

    async def restore(self, cursor: CompactionCursor) -> None:
        """Opens the compacted ledger of a topic that has this cursor."""
        ledger_id = cursor.long_properties.get(LEDGER_PROPERTY)
        if ledger_id is None:
            return
        try:
            self._compacted = await CompactedLedger.open(self._context.client, ledger_id, cursor.mark_delete)
        except NoSuchLedgerError:
            log.error(
                "a compacted ledger does not exist any more", extra={"topic": self._topic, "ledger_id": ledger_id}
            )

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
        """Reads like `TopicLog.read`.

        Positions may be of ledgers that the topic no longer has: a reader continues at the next entry id, and not at
        the chain's next position.
        """
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
        """Compacts everything that is confirmed now. CompactionError if it runs already; if it raises, nothing has
        changed."""
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
        choice, entries_read = await self._choose(up_to)
        writer = await self._make_ledger(up_to)
        try:
            written = await self._write(choice, up_to, writer)
            await writer.close()
            compacted = await CompactedLedger.open(self._context.client, writer.ledger_id, up_to)
        except BaseException:
            await writer.release()
            await delete_ledgers(self._context.client, [LedgerSpan(writer.ledger_id)])
            raise
        await self._adopt(compacted, cursor)
        if before is not None:
            await delete_ledgers(self._context.client, [LedgerSpan(before.ledger_id)])
        log.info(
            "a topic is compacted", extra={"topic": self._topic, "ledger_id": writer.ledger_id, "entries": written}
        )
        return CompactionResult(
            ledger_id=writer.ledger_id, entries_read=entries_read, entries_written=written, keys=choice.keys
        )

    async def _adopt(self, compacted: CompactedLedger, cursor: CompactionCursor) -> None:
        """Moves readers first, and then the cursor: once that has moved, the topic may be trimmed."""
        self._compacted = compacted
        cursor.set_long_properties({**cursor.long_properties, LEDGER_PROPERTY: compacted.ledger_id})
        cursor.acknowledge_to(compacted.horizon)
        await cursor.flush()

    async def _make_ledger(self, up_to: Position) -> LedgerWriter:
        config = self._config
        return await self._context.client.create(
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
        """Yields the compacted view, without entries that come meanwhile."""
        place = EARLIEST
        while entries := await self.read(place, _READ_ENTRIES, _READ_BYTES):
            for entry in entries:
                if entry.position > up_to:
                    return
                yield entry
            place = entry.position.next
            await asyncio.sleep(0)  # Entries from memory need no wait, so other tasks get their turn here.

    async def _choose(self, up_to: Position) -> tuple[CompactionChoice, int]:
        """Runs phase one: notes where the last message of each key is."""
        choice = CompactionChoice(keeps_null_keys=self._config.compaction_retain_null_key)
        count = 0
        async with aclosing(self._entries(up_to)) as entries:
            async for entry in entries:
                count += 1
                choice.note(entry)
        return choice, count

    async def _write(self, choice: CompactionChoice, up_to: Position, writer: LedgerWriter) -> int:
        """Runs phase two: writes those messages, in the order of the topic."""
        output = CompactedOutput(writer)
        try:
            async with aclosing(self._entries(up_to)) as entries:
                async for entry in entries:
                    kept = self._what_is_left(choice, entry)
                    if kept is not None:
                        await output.put(encode_compacted(entry.position, kept))
            await output.flush()
        finally:
            output.abandon()
        return output.entries

    def _what_is_left(self, choice: CompactionChoice, entry: LogEntry) -> Buffer | None:
        try:
            return choice.what_is_left(entry)
        except MalformedEntryError as error:
            log.warning(
                "an entry that cannot be read is kept as it is", extra={"topic": self._topic, "why": str(error)}
            )
            return entry.data

    async def delete(self) -> None:
        """Deletes the compacted ledger when the topic or the cursor is deleted."""
        compacted, self._compacted = self._compacted, None
        if compacted is not None:
            await delete_ledgers(self._context.client, [LedgerSpan(compacted.ledger_id)])
