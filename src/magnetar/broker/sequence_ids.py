"""Sequence ids of a topic's producers: which message is new, which a duplicate. Pure: no I/O, no clock.

Known:     for each producer's name, the highest sequence id that was handed to the log (pushed) and the highest that
           is durable (persisted). Beyond pushed: new. Up to persisted: a duplicate, answered as stored. Between the
           two: undecided, an error, and the client sends it again.
Ids:       what a cursor's properties can hold: a Java `long`, not negative. A higher one is refused when it is sent.
           In the log, where it may be from before, it is read as Java reads it: as negative, and so it is nothing.
Chunks:    all chunks of a message have its sequence id; only the last one makes it a whole, here and when replaying.
Read next: dedup.py (when it is learned and stored)
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from magnetar.errors import NotAllowedError
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import MessageMetadata
from magnetar.wire.pulsar.text import text_of

SEQUENCE_ID_MAX: Final = 2**63 - 1


class Verdict(enum.Enum):
    NEW = "new"
    DUPLICATE = "duplicate"
    UNDECIDED = "undecided"


class SequenceIds:
    """The two maps, and nothing else: no I/O, no clock."""

    def __init__(self, persisted: Mapping[str, int] | None = None) -> None:
        self.persisted: dict[str, int] = dict(persisted or {})
        self._pushed: dict[str, int] = dict(self.persisted)
        self._uncounted: dict[tuple[str, int], int] = {}
        """(Producer, sequence id) → entries on their way that do not complete a message."""
        self._last: tuple[str, int | None] | tuple[str, int, int] = ("", None)
        """What the last verdict changed: the producer and what was pushed before; or an uncounted entry's key."""

    def judge(self, producer: str, sequence_id: int, highest_sequence_id: int, *, counts: bool) -> Verdict:
        """Of an entry that is to be appended. If it is new, it is pushed now. NotAllowedError if its id could not be
        remembered."""
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
        """An entry that is appended whether or not it is new. NotAllowedError as of `judge`."""
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

    def on_persisted(self, producer: str, sequence_id: int, highest_sequence_id: int) -> None:
        """In the order of the log, which is that of `judge` for each producer."""
        if self._uncounted and self._take_uncounted((producer, sequence_id)):
            return
        highest = _highest_of(sequence_id, highest_sequence_id)
        if highest > self.persisted.get(producer, -1):
            self.persisted[producer] = highest

    def on_read_later(self, producer: str, sequence_id: int) -> None:
        """Durable, too, but not recorded: `replay` will be told of it."""
        self._take_uncounted((producer, sequence_id))

    def _take_uncounted(self, key: tuple[str, int]) -> bool:
        left = self._uncounted.get(key, 0)
        if left > 1:
            self._uncounted[key] = left - 1
        elif left:
            del self._uncounted[key]
        return bool(left)

    def replay(self, metadata: MessageMetadata) -> None:
        """An entry of the log that is behind the snapshot."""
        if metadata.HasField("marker_type"):
            return
        if metadata.num_chunks_from_msg > 1 and metadata.chunk_id != metadata.num_chunks_from_msg - 1:
            return
        highest = _highest_of(metadata.sequence_id, metadata.highest_sequence_id)
        producer = text_of(metadata.producer_name)  # A name that is no text could not be stored in a snapshot.
        if highest > self.persisted.get(producer, -1):
            self.persisted[producer] = highest
            self._pushed[producer] = max(self._pushed.get(producer, -1), highest)

    def take_back(self) -> None:
        """The entry that was judged last was new, and could not be appended after all."""
        producer = self._last[0]
        if len(self._last) == 3:
            self._take_uncounted((producer, self._last[1]))
        elif self._last[1] is None:
            del self._pushed[producer]
        else:
            self._pushed[producer] = self._last[1]

    def pushed(self, producer: str) -> int:
        """The highest that may be in the log; −1 if there is none."""
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
    """Of what is in the log, whether or not it was judged."""
    highest = max(sequence_id, highest_sequence_id)
    return highest if highest <= SEQUENCE_ID_MAX else max(_as_long(sequence_id), _as_long(highest_sequence_id))


def _as_long(number: int) -> int:
    return number if number <= SEQUENCE_ID_MAX else number - 2**64
