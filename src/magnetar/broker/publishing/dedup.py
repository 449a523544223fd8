"""Deduplication: a message that a producer sends again is stored once.

`SequenceIds` decides, and `Deduplication` learns and stores what it must know. For each producer's name two sequence
ids are known: the highest that was passed to the log (pushed) and the highest that is durable (persisted). A message
with a higher id than pushed is new. One up to persisted is a duplicate, answered as stored. Between the two it is
undecided: an error, and the client sends it again. All chunks of a message have its sequence id; only the last one
completes it, here and when the log is replayed.

Invariant: An id is recorded only after the write is durable. When a write fails, its topic is unloaded, and this with
           it: the log decides then.
Order:     When a topic is opened, the entries after the stored ids are read before any producer is admitted. On a topic
           that is served already, some messages are in flight that were not judged. From the start, published messages
           are noted and let through; when all that was in flight before is durable, the log is read, chunks included.
           Only then is anything judged, or stored.
Format:    The cursor `pulsar.dedup` has the persisted ids as its long properties; its mark-delete position is where
           they were taken. A snapshot is stored after a number of entries, some time after the first entry that the
           last one lacks, as the policies set it, and when the topic is closed. An id is a Java `long` that is not
           negative. A higher one is refused when it is sent; in an old log it is read as Java reads it, as negative,
           and ignored.
Limits:    Producers that were not connected for long are forgotten, and the oldest beyond the limit. A producer whose
           first message became durable only after it had left counts as seen when that is noticed.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from magnetar.broker.publishing.producers import Publish
from magnetar.errors import MalformedEntryError, NotAllowedError
from magnetar.topic.cursor.cursors import Cursor
from magnetar.topic.entry_format.head import EntryHead
from magnetar.topic.log.log import TopicLog
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import Position

log = logging.getLogger(__name__)

SEQUENCE_ID_MAX: Final = 2**63 - 1


class Verdict(enum.Enum):
    NEW = "new"
    DUPLICATE = "duplicate"
    UNDECIDED = "undecided"


class SequenceIds:
    """Holds the two maps. Pure: no I/O, no clock."""

    def __init__(self, persisted: Mapping[str, int] | None = None) -> None:
        self.persisted: dict[str, int] = dict(persisted or {})
        self._pushed: dict[str, int] = dict(self.persisted)
        self._uncounted: dict[tuple[str, int], int] = {}
        """(Producer, sequence id) → entries in flight that do not complete a message."""
        self._last: tuple[str, int | None] | tuple[str, int, int] = ("", None)
        """What the last verdict changed: the producer and what was pushed before; or an uncounted entry's key."""

    def judge(self, producer: str, sequence_id: int, highest_sequence_id: int, *, counts: bool) -> Verdict:
        """Judges an entry that is to be appended. If it is new, it is pushed now.

        Raises NotAllowedError if its id cannot be stored.
        """
        _require_known(producer, max(sequence_id, highest_sequence_id))
        if not counts:
            self._push_uncounted(producer, sequence_id)
            return Verdict.NEW
        pushed = self._pushed.get(producer)
        if pushed is None or sequence_id > pushed:
            self._last = (producer, pushed)
            self._pushed[producer] = max(sequence_id, highest_sequence_id)
            return Verdict.NEW
        persisted = self.persisted.get(producer)
        return Verdict.DUPLICATE if persisted is not None and sequence_id <= persisted else Verdict.UNDECIDED

    def note(self, producer: str, sequence_id: int, highest_sequence_id: int, *, counts: bool) -> None:
        """Notes an entry that is appended whether or not it is new. Raises NotAllowedError like `judge`."""
        highest = max(sequence_id, highest_sequence_id)
        _require_known(producer, highest)
        if not counts:
            self._push_uncounted(producer, sequence_id)
            return
        pushed = self._pushed.get(producer)
        self._last = (producer, pushed)
        self._pushed[producer] = highest if pushed is None else max(pushed, highest)

    def _push_uncounted(self, producer: str, sequence_id: int) -> None:
        key = (producer, sequence_id)
        self._uncounted[key] = self._uncounted.get(key, 0) + 1
        self._last = (producer, sequence_id, 1)

    def on_appended(self, producer: str, sequence_id: int, highest_sequence_id: int) -> None:
        """Must be called in the order of the log, which is that of `judge` for each producer."""
        if self._uncounted and self._take_uncounted((producer, sequence_id)):
            return
        highest = _highest_of(sequence_id, highest_sequence_id)
        if highest > self.persisted.get(producer, -1):
            self.persisted[producer] = highest

    def on_read_later(self, producer: str, sequence_id: int) -> None:
        """Notes an entry that is durable, but not recorded: `replay` will see it."""
        self._take_uncounted((producer, sequence_id))

    def _take_uncounted(self, key: tuple[str, int]) -> bool:
        left = self._uncounted.get(key, 0)
        if left > 1:
            self._uncounted[key] = left - 1
        elif left:
            del self._uncounted[key]
        return bool(left)

    def replay(self, head: EntryHead) -> None:
        """Records an entry of the log that is after the snapshot."""
        if not head.completes_message:
            return
        highest = _highest_of(head.sequence_id, head.highest_sequence_id)
        producer = head.producer_name  # As text: a name that is not text could not be stored in a snapshot.
        if highest > self.persisted.get(producer, -1):
            self.persisted[producer] = highest
            self._pushed[producer] = max(self._pushed.get(producer, -1), highest)

    def take_back(self) -> None:
        """Undoes the last verdict: the entry was new, and could not be appended."""
        producer = self._last[0]
        if len(self._last) == 3:
            self._take_uncounted((producer, self._last[1]))
        elif self._last[1] is None:
            del self._pushed[producer]
        else:
            self._pushed[producer] = self._last[1]

    def pushed(self, producer: str) -> int:
        """Returns the highest id that may be in the log, or −1."""
        return self._pushed.get(producer, -1)

    def forget(self, producer: str) -> None:
        self.persisted.pop(producer, None)
        self._pushed.pop(producer, None)


def _require_known(producer: str, sequence_id: int) -> None:
    if sequence_id > SEQUENCE_ID_MAX:
        raise NotAllowedError(
            f"sequence id {sequence_id} of producer {producer!r} is beyond {SEQUENCE_ID_MAX}, the highest that "
            "deduplication knows: use lower ones"
        )


def _highest_of(sequence_id: int, highest_sequence_id: int) -> int:
    """Returns the id that counts for an entry of the log, whether or not it was judged."""
    highest = max(sequence_id, highest_sequence_id)
    return highest if highest <= SEQUENCE_ID_MAX else max(_as_long(sequence_id), _as_long(highest_sequence_id))


def _as_long(number: int) -> int:
    return number if number <= SEQUENCE_ID_MAX else number - 2**64


# --- a topic ----------------------------------------------------------------------------------------------------------

CURSOR_NAME: Final = "pulsar.dedup"
_READ_ENTRIES: Final = 1_000
_READ_BYTES: Final = 8 * 2**20


class Deduplication:
    """Serves one topic. It judges when `learn` has returned."""

    def __init__(
        self, cursor: Cursor, *, snapshot_s: int, snapshot_entries: int, producers_max: int, messages_in_flight: int = 0
    ) -> None:
        """`messages_in_flight` were appended before, and are not durable. A `snapshot_s` of 0: never by time."""
        self.is_ready = False
        """Whether the whole map is known."""
        self._unjudged = messages_in_flight
        self._all_judged = asyncio.Event()
        if not messages_in_flight:
            self._all_judged.set()
        self._cursor = cursor
        self._snapshot_s = snapshot_s
        self._snapshot_entries = snapshot_entries
        self._producers_max = producers_max
        self._ids = SequenceIds(cursor.long_properties)
        self._unsaved = 0
        self._last = cursor.mark_delete  # Up to here it is durable.
        self._timer: asyncio.TimerHandle | None = None
        self._seen_s: dict[str, float] = {}
        """For each producer that is not connected, since when."""

    async def learn(self, log_: TopicLog, now_s: float) -> None:
        """Reads the log. The caller sets the timeout."""
        await self._all_judged.wait()
        await self._replay(log_)
        self.is_ready = True  # In the turn in which the end of the log was met: later entries were noted.
        self._seen_s = dict.fromkeys(self._ids.persisted, now_s)
        self._last = log_.last_confirmed
        self._save_when_due()

    async def _replay(self, log_: TopicLog) -> None:
        position = log_.chain.next_position(self._cursor.mark_delete)
        while position <= log_.last_confirmed:  # Including what comes meanwhile.
            entries = await log_.read(position, _READ_ENTRIES, _READ_BYTES)
            if not entries:
                return
            for entry in entries:
                self._replay_entry(entry)
            self._unsaved += len(entries)
            position = log_.chain.next_position(entries[-1].position)

    def _replay_entry(self, entry: LogEntry) -> None:
        try:
            self._ids.replay(entry.head)
        except MalformedEntryError as error:  # No client can have sent it, so it is never repeated.
            log.warning("an entry is not a message", extra={"position": str(entry.position), "why": str(error)})

    # --- publishing ---------------------------------------------------------------------------------------------------

    def judge(self, publish: Publish, *, counts: bool) -> Verdict:
        producer, sequence_id, highest_sequence_id, _, _, _ = publish
        if self.is_ready:
            return self._ids.judge(producer.name, sequence_id, highest_sequence_id, counts=counts)
        self._ids.note(producer.name, sequence_id, highest_sequence_id, counts=counts)
        return Verdict.NEW

    def on_appended(self, run: Sequence[Publish], last: Position) -> None:
        if not self.is_ready:
            self._no_longer_in_progress(run)
            return
        on_appended = self._ids.on_appended
        for producer, sequence_id, highest_sequence_id, _, _, _ in run:
            on_appended(producer.name, sequence_id, highest_sequence_id)
        self._unsaved += len(run)
        self._last = last
        self._save_when_due()

    def on_lost(self, run: Sequence[Publish]) -> None:
        """Forgets messages that will never be durable: the topic was terminated before their turn."""
        self._no_longer_in_progress(run)

    def _no_longer_in_progress(self, run: Sequence[Publish]) -> None:
        """Counts down while it learns: nothing is recorded here, as the log is read afterwards."""
        for producer, sequence_id, _, messages, _, _ in run:
            if self._unjudged > 0:
                self._unjudged -= max(1, messages)
            else:
                self._ids.on_read_later(producer.name, sequence_id)
        if self._unjudged <= 0:
            self._all_judged.set()

    def take_back(self) -> None:
        """Undoes the last verdict: its message is not appended."""
        self._ids.take_back()

    def last_sequence_id(self, producer: str) -> int:
        """Returns the id after which a producer of this name continues. Lower ones could be confused with those in
        flight."""
        return self._ids.pushed(producer)

    # --- remembering --------------------------------------------------------------------------------------------------

    def _save_when_due(self) -> None:
        if self._unsaved >= self._snapshot_entries:
            self._save()
        elif self._unsaved and self._timer is None and self._snapshot_s:
            self._timer = asyncio.get_running_loop().call_later(self._snapshot_s, self._save)

    def _save(self) -> None:
        self.close()
        self._unsaved = 0
        self._cursor.acknowledge_to(self._last)
        self._cursor.set_long_properties(self._ids.persisted)
        self._cursor.flush_soon()

    async def snapshot(self) -> None:
        """Stores what is known, durably. Does nothing if nothing came since the last snapshot, or while it still
        learns."""
        if self._unsaved and self.is_ready:
            self._save()
        await self._cursor.flush()

    def set_snapshot_s(self, snapshot_s: int) -> None:
        """Changes the interval from now on."""
        if snapshot_s != self._snapshot_s:
            self._snapshot_s = snapshot_s
            self.close()
            if self.is_ready:
                self._save_when_due()

    def close(self) -> None:
        """Ends the snapshots by time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def on_connected(self, producer: str) -> None:
        self._seen_s.pop(producer, None)

    def on_disconnected(self, producer: str, now_s: float) -> None:
        if producer in self._ids.persisted:
            self._seen_s[producer] = now_s

    def forget_idle(self, idle_s: float, now_s: float, is_connected: Callable[[str], bool]) -> int:
        """Forgets producers that were not connected for this many seconds, and the longest idle ones beyond the
        limit."""
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
        """Counts producers as seen now whose messages became durable after they had left, or that were never connected.

        The latter are those that publish staged messages.
        """
        for name in self._ids.persisted:
            if name not in self._seen_s and not is_connected(name):
                self._seen_s[name] = now_s
