"""Staging's records, as values and as JSON: what a task staged, what a driver decided, how far an owner is.

Invariant: a job is its id and its target together: one job id with two targets names two jobs, and each of them is
           published once. A batch of a stream that is saved to two topics under one id is therefore in both of them.
Format:    Staged: what a task hands to its driver, in the job's own messages.
           OwnerRecord: `/magnetar/sinks/<owner>`: the last epoch that is done, and the staged ledgers to delete.
           Intent: `/magnetar/sinks/<owner>/<epoch>`: the staged ledgers of the epoch, in order. One that is too large
           for a node is in a ledger of its own, and the node names the ledger.
           Registration: `/magnetar/sinks/<owner>/staged/<ledger>`: a staged ledger that may exist, made before the
           ledger is.
           JobIdentity: the owner is `<job>@<16 hex digits of the target's SHA-256>`. The target is hashed because an
           owner's name is part of metadata paths, and a topic's name may be as long as such a path may be. Earlier
           versions named the owner `<job>`, and noted the target nowhere. A record of that name that is done counts for
           every target: a job of an earlier version is never published twice.
Read next: register.py (their paths), intents.py, sink.py (`Sink.is_job_done`), docs/staging.md
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
_DIGEST_CHARACTERS: Final = 16


@dataclass(frozen=True, slots=True)
class StagedPart:
    """A whole closed ledger, which one task staged for one topic."""

    topic: str
    """Complete, `persistent://tenant/namespace/name`; the partition of a partitioned topic."""
    ledger_id: int
    entries: int
    rows: int
    size_bytes: int
    """Of all entries."""
    checksum: int
    """The checksum of its entries in their order: `checksum_of`."""


@dataclass(frozen=True, slots=True)
class Staged:
    """The result of one attempt of one task. It is seen only if a driver commits it."""

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
        """Parses the text; raises StagingRecordError if `to_json` did not make it."""
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
    """The digest of that intent: a driver that lost the answer to its own learns here whether it counted."""
    sweeps: int = 0
    doomed: tuple[int, ...] = ()
    """Staged ledgers that a sweeper is about to delete: no intent names them from now on."""
    is_job: bool = False
    """Whether the owner publishes nothing after this: topics need not remember it when it is done."""
    is_passing: bool = False
    """Whether it is a job that is forgotten when it is done: its name is random and not used again."""

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
        """Parses a record. An empty node is an owner of which nothing is done: it was made as the parent of a
        register."""
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
    """The ledgers of an epoch. It never changes: content and order are fixed by its creation."""

    owner: str
    epoch: int
    parts: tuple[StagedPart, ...]
    """The parts in the order of publishing: by the task's partition, and each task's as it wrote them."""
    own_ledger: int | None = field(default=None, compare=False)
    """The ledger of an intent that is too large for a node."""

    @classmethod
    def of(cls, owner: str, epoch: int, staged: Sequence[Staged]) -> Self:
        """Makes an intent, without empty parts. `staged` has one for each partition."""
        in_order = sorted(staged, key=lambda each: each.partition)
        return cls(owner, epoch, tuple(part for each in in_order for part in each.parts if part.entries))

    @property
    def topics(self) -> list[str]:
        """Returns the topics, sorted, each once."""
        return sorted({part.topic for part in self.parts})

    def parts_of(self, topic: str) -> tuple[StagedPart, ...]:
        return tuple(part for part in self.parts if part.topic == topic)

    @property
    def ledgers(self) -> list[int]:
        """Returns all ledgers that it needs until it is done."""
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
    """The note of a staged ledger, whether it exists yet or not."""

    ledger_id: int
    epoch: int
    created_ms: int
    """By the store's clock."""


def checksum_of(entry: Buffer, before: int) -> int:
    """Returns CRC32C of the beginnings of all entries, one after the other. An entry begins with a checksum of the rest
    of it; so this one covers everything, and costs nothing."""
    return crc32c(memoryview(entry)[:_CHECKED_BYTES], before)


@dataclass(frozen=True, slots=True)
class JobIdentity:
    job: str
    """The job's id with the prefix of the system that runs it: `spark-job/replay-1`."""
    target: str
    """The complete name of the topic for all rows; empty if each row names its topic."""

    @property
    def owner(self) -> str:
        return f"{self.job}@{hashlib.sha256(self.target.encode()).hexdigest()[:_DIGEST_CHARACTERS]}"

    @property
    def owner_without_target(self) -> str:
        """The owner's name in records that earlier versions stored."""
        return self.job

    @property
    def target_text(self) -> str:
        """Returns the target for messages."""
        return self.target or "the topics that its rows name"


def _from_part(part: StagedPart) -> list[Any]:
    return [part.topic, part.ledger_id, part.entries, part.rows, part.size_bytes, part.checksum]


def _to_part(value: Any) -> StagedPart:
    topic, *numbers = value
    ledger_id, entries, rows, size_bytes, checksum = (int(number) for number in numbers)
    return StagedPart(str(topic), ledger_id, entries, rows, size_bytes, checksum)


def _malformed(what: str, error: Exception) -> StagingRecordError:
    return StagingRecordError(f"{what} cannot be read: {error}")
