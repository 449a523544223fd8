"""What staging writes down, as values and as JSON: what a task staged, what a driver decided, how far an owner is.

Staged:    what a task hands to its driver. Travels with the job's own messages.
Record:    `/magnetar/sinks/<owner>`: the last epoch that is done, and which staged ledgers are to be deleted.
Intent:    `/magnetar/sinks/<owner>/<epoch>`: which staged ledgers make up the epoch, in which order. One that is too
           large for a node is in a ledger of its own, and the node says in which.
Register:  `/magnetar/sinks/<owner>/staged/<ledger>`: a staged ledger that may exist, made before the ledger is.
Read next: paths.py, intents.py, docs/staging.md
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from crc32c import crc32c

from magnetar.errors import StagingRecordError
from magnetar.wire.bookkeeper.frames import Buffer

NONE_DONE: Final = -1
"""The last epoch of an owner that has done none."""
EPOCH_MAX: Final = 2**31 - 1
"""So that an epoch is the upper half of a sequence id."""


_CHECKED_BYTES: Final = 64


def checksum_of(entry: Buffer, before: int) -> int:
    """CRC32C of the beginnings of all entries, one behind the other. An entry begins with a checksum of its own, over
    all the rest of it; so this one covers everything, and costs nothing."""
    return crc32c(memoryview(entry)[:_CHECKED_BYTES], before)


@dataclass(frozen=True, slots=True)
class StagedPart:
    """What one task staged for one topic: a whole closed ledger."""

    topic: str
    """Complete, `persistent://tenant/namespace/name`; of a partitioned topic the partition."""
    ledger_id: int
    entries: int
    rows: int
    size_bytes: int
    """Of all entries."""
    checksum: int
    """Of what its entries are, and their order: `checksum_of`."""


@dataclass(frozen=True, slots=True)
class Staged:
    """What one attempt of one task has written. Only what a driver commits is ever seen."""

    owner: str
    epoch: int
    partition: int
    attempt: int
    parts: tuple[StagedPart, ...] = ()

    def to_json(self) -> str:
        value = [self.owner, self.epoch, self.partition, self.attempt, [_from_part(part) for part in self.parts]]
        return json.dumps(value, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """StagingRecordError if it is nothing that `to_json` made."""
        try:
            owner, epoch, partition, attempt, parts = json.loads(text)
            return cls(str(owner), int(epoch), int(partition), int(attempt), tuple(_to_part(part) for part in parts))
        except (ValueError, TypeError) as error:
            raise _malformed("what a task staged", error) from None


@dataclass(frozen=True, slots=True)
class OwnerRecord:
    last_done: int = NONE_DONE
    decided: int = NONE_DONE
    """The last epoch that has, or had, an intent. The record changes with every intent, so two never come at once."""
    decided_by: str = ""
    """The digest of that intent: whoever lost the answer to his own learns here whether it counted."""
    sweeps: int = 0
    doomed: tuple[int, ...] = ()
    """Staged ledgers that a sweeper is about to delete: no intent names them from now on."""
    is_job: bool = False
    """Whether this is all that the owner ever publishes: topics need not remember it when it is done."""
    is_passing: bool = False
    """A job that is forgotten when it is done: its name is random, and nobody comes again."""

    def to_bytes(self) -> bytes:
        value: dict[str, Any] = {"last_done": self.last_done, "decided": self.decided, "sweeps": self.sweeps}
        if self.decided_by:
            value["by"] = self.decided_by
        if self.doomed:
            value["doomed"] = list(self.doomed)
        if self.is_job:
            value["job"] = True
        if self.is_passing:
            value["passing"] = True
        return json.dumps(value, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """An empty node is an owner of whom nothing is done: it was made as the parent of a register."""
        if not data:
            return cls()
        try:
            value = json.loads(data)
            return cls(
                last_done=int(value["last_done"]),
                decided=int(value["decided"]),
                decided_by=str(value.get("by", "")),
                sweeps=int(value["sweeps"]),
                doomed=tuple(int(each) for each in value.get("doomed", ())),
                is_job=bool(value.get("job", False)),
                is_passing=bool(value.get("passing", False)),
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise _malformed("an owner's record", error) from None


@dataclass(frozen=True, slots=True)
class Intent:
    """What an epoch is made of. It never changes: content and order are fixed by its creation."""

    owner: str
    epoch: int
    parts: tuple[StagedPart, ...]
    """In the order in which they are published: by the task's partition, and each task's as it wrote them."""
    own_ledger: int | None = field(default=None, compare=False)
    """Of an intent that is too large for a node: the ledger that it is in."""

    @classmethod
    def of(cls, owner: str, epoch: int, staged: Sequence[Staged]) -> Self:
        """Empty parts are left out. `staged` has one for each partition."""
        in_order = sorted(staged, key=lambda each: each.partition)
        return cls(owner, epoch, tuple(part for each in in_order for part in each.parts if part.entries))

    @property
    def topics(self) -> list[str]:
        """Sorted, each once."""
        return sorted({part.topic for part in self.parts})

    def parts_of(self, topic: str) -> tuple[StagedPart, ...]:
        return tuple(part for part in self.parts if part.topic == topic)

    @property
    def ledgers(self) -> list[int]:
        """All that it needs, until it is done."""
        own = [] if self.own_ledger is None else [self.own_ledger]
        return [*(part.ledger_id for part in self.parts), *own]

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.to_bytes()).hexdigest()[:32]

    def to_bytes(self) -> bytes:
        value = [self.owner, self.epoch, [_from_part(part) for part in self.parts]]
        return json.dumps(value, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        try:
            owner, epoch, parts = json.loads(data)
            return cls(str(owner), int(epoch), tuple(_to_part(part) for part in parts))
        except (ValueError, TypeError) as error:
            raise _malformed("an intent", error) from None


@dataclass(frozen=True, slots=True)
class Registration:
    """Of a staged ledger, whether it exists by now or not."""

    ledger_id: int
    epoch: int
    created_ms: int
    """By the store's clock."""


def _from_part(part: StagedPart) -> list[Any]:
    return [part.topic, part.ledger_id, part.entries, part.rows, part.size_bytes, part.checksum]


def _to_part(value: Any) -> StagedPart:
    topic, *numbers = value
    ledger_id, entries, rows, size_bytes, checksum = (int(number) for number in numbers)
    return StagedPart(str(topic), ledger_id, entries, rows, size_bytes, checksum)


def _malformed(what: str, error: Exception) -> StagingRecordError:
    return StagingRecordError(f"{what} cannot be read: {error}")
