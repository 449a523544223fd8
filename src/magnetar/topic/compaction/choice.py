"""Which messages of a topic compaction keeps: for each key the last whole one. Pure.

All chunks of a key's last message stay, and those of older ones go together. Chunks of several producers may be mixed,
and may be in several ledgers. A message whose last chunk has not been seen may be completed after the last entry that
is compacted, so its chunks stay, and so does the key's last whole message. It is given up when its producer has
published something else after it: producers send the chunks of a message one after another. A repeated chunk is a
producer's retry and goes; a chunk whose predecessor is missing cannot become a message, and goes.

A message with a key and without a payload deletes the key, in chunks or not. Keys are bytes: two keys that are not
UTF-8 are different keys, though clients may show them alike.

Order:     A message is where its entry is; a chunked one where its last chunk is, because clients get it there.
Limits:    The memory holds a key and a position per key, and a position per chunk; no payloads.
Read next: compaction.py
"""

from __future__ import annotations

from collections.abc import Iterable

from magnetar.errors import MalformedEntryError
from magnetar.topic.entry_format.head import Chunk, EntryHead, Text
from magnetar.topic.entry_format.messages import NO_BATCH, filtered_batch, keys_of, size_of
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import Position
from magnetar.wire.bookkeeper.frames import Buffer

Place = tuple[int, int, int]
"""Ledger, entry, index in its batch."""


class _Chunked:
    """Is a message in chunks, as far as it was seen."""

    __slots__ = ("key", "positions", "producer", "size")

    def __init__(self, head: EntryHead) -> None:
        self.key = head.key
        self.producer = head.producer
        self.positions: list[Position] = []
        self.size = 0


class CompactionChoice:
    """Is asked in two phases: `note` for every entry in order; after that `what_is_left` for each."""

    def __init__(self, *, keeps_null_keys: bool) -> None:
        self._keeps_null_keys = keeps_null_keys
        self._latest: dict[Text, Place | _Chunked] = {}
        self._open: dict[Text, _Chunked] = {}  # By uuid.
        self._kept_chunks: frozenset[Position] | None = None

    @property
    def keys(self) -> int:
        return len(self._latest)

    # --- phase one ----------------------------------------------------------------------------------------------------

    def note(self, entry: LogEntry) -> None:
        assert self._kept_chunks is None, "phase two has begun"
        try:
            head = entry.head
            if head.is_marker:
                return
            if self._open:
                self._give_up_those_before(head)
            chunk = head.chunk
            if chunk is not None:
                self._note_chunk(entry, chunk)
                return
            keys = keys_of(entry)
        except MalformedEntryError:
            return
        for index, key, size in keys:
            if key is not None:
                self._note_message(key, (*entry.position, index), size)

    def _note_message(self, key: Text, place: Place | _Chunked, size: int) -> None:
        if size:
            self._latest[key] = place
        else:
            self._latest.pop(key, None)

    def _give_up_those_before(self, head: EntryHead) -> None:
        """Gives up earlier messages of this entry's producer, which sends nothing more of them."""
        producer, uuid = head.producer, head.uuid
        for other in [other for other, message in self._open.items() if message.producer == producer and other != uuid]:
            del self._open[other]

    def _note_chunk(self, entry: LogEntry, chunk: Chunk) -> None:
        uuid, number, parts = chunk
        if number == 0:
            self._open[uuid] = _Chunked(entry.head)  # A retry begins the message anew.
        message = self._open.get(uuid)
        if message is None or number < len(message.positions):
            return
        if number > len(message.positions):
            del self._open[uuid]
            return
        message.positions.append(entry.position)
        message.size += size_of(entry)
        if len(message.positions) >= parts:
            del self._open[uuid]
            if message.key is not None:
                self._note_message(message.key, message, message.size)

    # --- phase two ----------------------------------------------------------------------------------------------------

    def what_is_left(self, entry: LogEntry) -> Buffer | None:
        """Returns the entry as it is kept, or None if it is not. Raises MalformedEntryError if it cannot be read."""
        head = entry.head
        if head.is_marker:
            return None
        position = entry.position
        if head.chunk is not None:
            if head.key is None:
                return entry.data if self._keeps_null_keys else None
            return entry.data if position in self._chunks() else None
        if head.is_readable_batch:
            return filtered_batch(entry, lambda index, key: self._is_kept((*position, index), key))
        return entry.data if self._is_kept((*position, NO_BATCH), head.key) else None

    def _is_kept(self, place: Place, key: Text | None) -> bool:
        return self._keeps_null_keys if key is None else self._latest.get(key) == place

    def _chunks(self) -> frozenset[Position]:
        if self._kept_chunks is None:
            whole = (message for message in self._latest.values() if isinstance(message, _Chunked))
            self._kept_chunks = frozenset(_positions(whole)) | frozenset(_positions(self._open.values()))
        return self._kept_chunks


def _positions(messages: Iterable[_Chunked]) -> Iterable[Position]:
    return (position for message in messages for position in message.positions)
