"""Deduplication: a message that a producer sends again is stored once.

Judged:    by the sequence ids of its producer (sequence_ids.py).
Durable:   cursor `pulsar.dedup`: the persisted ids as its long properties, its mark-delete position is where they were
           taken. On open the entries behind it are read, before anybody may publish.
Snapshot:  after so many entries; or so long after the first one that it does not have, as the policies say; and when
           the topic is closed.
Recorded:  only after the write is durable. When a write fails, its topic is unloaded, and this with it: what is in the
           log then decides.
Learning:  on a topic that is served already, some messages are on their way that nobody has judged. From the moment
           it is made, what is published is noted and let through; when all that was on its way before is durable, the
           log is read, chunks and all. Only then is anything judged, or stored.
Forgotten: producers that were not connected for long, the oldest first beyond the limit. One whose first message
           became durable only after it had left counts as seen when that is noticed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from magnetar.broker.producer import Publish
from magnetar.broker.sequence_ids import SequenceIds, Verdict
from magnetar.errors import MalformedEntryError
from magnetar.topic.chain import LedgerChain
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import Position

log = logging.getLogger(__name__)

CURSOR_NAME: Final = "pulsar.dedup"
_READ_ENTRIES: Final = 1_000
_READ_BYTES: Final = 8 * 2**20


class DedupCursor(Protocol):
    """Of `Cursor`, what is needed here."""

    @property
    def mark_delete(self) -> Position: ...
    @property
    def long_properties(self) -> Mapping[str, int]: ...
    def acknowledge_to(self, position: Position) -> None: ...
    def set_long_properties(self, properties: Mapping[str, int]) -> None: ...
    def flush_soon(self) -> None: ...
    async def flush(self) -> None: ...


class DedupLog(Protocol):
    @property
    def chain(self) -> LedgerChain: ...
    @property
    def last_confirmed(self) -> Position: ...
    async def read(self, first: Position, entries_max: int, bytes_max: int) -> list[LogEntry]: ...


class Deduplication:
    """Of one topic. It judges when `learn` has returned."""

    def __init__(
        self,
        cursor: DedupCursor,
        *,
        snapshot_s: int,
        snapshot_entries: int,
        producers_max: int,
        messages_under_way: int = 0,
    ) -> None:
        """`messages_under_way` were appended before, and are not durable. A `snapshot_s` of 0: never by time."""
        self.is_ready = False
        """Whether the whole map is known."""
        self._unjudged = messages_under_way
        self._all_judged = asyncio.Event()
        if not messages_under_way:
            self._all_judged.set()
        self._cursor = cursor
        self._snapshot_s = snapshot_s
        self._snapshot_entries = snapshot_entries
        self._producers_max = producers_max
        self._ids = SequenceIds(cursor.long_properties)
        self._unsaved = 0
        self._last = cursor.mark_delete  # That is durable.
        self._timer: asyncio.TimerHandle | None = None
        self._seen_s: dict[str, float] = {}
        """Producer that is not connected → since when."""

    async def learn(self, log_: DedupLog, now_s: float) -> None:
        """The caller brings the timeout."""
        await self._all_judged.wait()
        await self._replay(log_)
        self.is_ready = True  # In the turn in which the end of the log was met: what is behind it was noted.
        self._seen_s = dict.fromkeys(self._ids.persisted, now_s)
        self._last = log_.last_confirmed
        self._save_when_due()

    async def _replay(self, log_: DedupLog) -> None:
        position = log_.chain.next_position(self._cursor.mark_delete)
        while position <= log_.last_confirmed:  # What comes meanwhile, too.
            entries = await log_.read(position, _READ_ENTRIES, _READ_BYTES)
            if not entries:
                return
            for entry in entries:
                self._replay_entry(entry)
            self._unsaved += len(entries)
            position = log_.chain.next_position(entries[-1].position)

    def _replay_entry(self, entry: LogEntry) -> None:
        try:
            self._ids.replay(entry.head.metadata)
        except MalformedEntryError as error:  # Nobody can have sent it through a client: there is nothing to repeat.
            log.warning("an entry that is no message", extra={"position": str(entry.position), "why": str(error)})

    # --- publishing ---------------------------------------------------------------------------------------------------

    def judge(self, publish: Publish, *, counts: bool) -> Verdict:
        if self.is_ready:
            return self._ids.judge(publish[0].name, publish[1], publish[2], counts=counts)
        self._ids.note(publish[0].name, publish[1], publish[2], counts=counts)
        return Verdict.NEW

    def on_persisted(self, run: Sequence[Publish], last: Position) -> None:
        if not self.is_ready:
            self._no_longer_under_way(run)
            return
        on_persisted = self._ids.on_persisted
        for publish in run:
            on_persisted(publish[0].name, publish[1], publish[2])
        self._unsaved += len(run)
        self._last = last
        self._save_when_due()

    def on_lost(self, run: Sequence[Publish]) -> None:
        """They will never be durable: the topic was terminated before their turn."""
        self._no_longer_under_way(run)

    def _no_longer_under_way(self, run: Sequence[Publish]) -> None:
        """While it learns, nothing is recorded here: the log is read behind it."""
        for publish in run:
            if self._unjudged > 0:
                self._unjudged -= max(1, publish[3])
            else:
                self._ids.on_read_later(publish[0].name, publish[1])
        if self._unjudged <= 0:
            self._all_judged.set()

    def take_back(self) -> None:
        """What was judged last is not appended."""
        self._ids.take_back()

    def last_sequence_id(self, producer: str) -> int:
        """A producer of this name goes on behind it; else its first messages would pass for those on their way."""
        return self._ids.pushed(producer)

    # --- remembering --------------------------------------------------------------------------------------------------

    def _save_when_due(self) -> None:
        if self._unsaved >= self._snapshot_entries:
            self._save()
        elif self._unsaved and self._timer is None and self._snapshot_s:
            self._timer = asyncio.get_running_loop().call_later(self._snapshot_s, self._save)

    def _save(self) -> None:
        """The map as it is belongs to the last entry that is durable; it is stored soon."""
        self.close()
        self._unsaved = 0
        self._cursor.acknowledge_to(self._last)
        self._cursor.set_long_properties(self._ids.persisted)
        self._cursor.flush_soon()

    async def snapshot(self) -> None:
        """What is known is durable when this returns. Nothing to do if nothing came since the last one, or if it is
        not all yet."""
        if self._unsaved and self.is_ready:
            self._save()
        await self._cursor.flush()

    def set_snapshot_s(self, snapshot_s: int) -> None:
        """From now on."""
        if snapshot_s != self._snapshot_s:
            self._snapshot_s = snapshot_s
            self.close()
            if self.is_ready:
                self._save_when_due()

    def close(self) -> None:
        """Nothing is saved by time any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def on_connected(self, producer: str) -> None:
        self._seen_s.pop(producer, None)

    def on_disconnected(self, producer: str, now_s: float) -> None:
        if producer in self._ids.persisted:
            self._seen_s[producer] = now_s

    def forget_idle(self, idle_s: float, now_s: float, is_connected: Callable[[str], bool]) -> int:
        """Producers that were not connected for so long, and the longest idle ones beyond the limit."""
        if not self.is_ready:
            return 0
        self._note_unseen(now_s, is_connected)
        excess = len(self._ids.persisted) - self._producers_max
        idle = sorted((since_s, name) for name, since_s in self._seen_s.items() if not is_connected(name))
        gone = [name for place, (since_s, name) in enumerate(idle) if since_s < now_s - idle_s or place < excess]
        for name in gone:
            self._ids.forget(name)
            del self._seen_s[name]
        return len(gone)

    def _note_unseen(self, now_s: float, is_connected: Callable[[str], bool]) -> None:
        """When they left, nothing of theirs was durable; or they were never connected, as those that publish what was
        staged."""
        for name in self._ids.persisted:
            if name not in self._seen_s and not is_connected(name):
                self._seen_s[name] = now_s
