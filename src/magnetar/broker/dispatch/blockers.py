"""Blockers: the reasons why a subscription does not deliver, as facts that a person or a program can act on.

A blocker names its kind, the consumer or the entry it concerns, and what would end it. `Subscription.explain()`
collects them from the state of dispatch when it is asked; nothing is kept for it while entries are delivered.
Read next: explain.py
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from magnetar.topic.position import Position


class BlockerKind(enum.StrEnum):
    """The values are part of the admin interface."""

    CAUGHT_UP = "caught-up"
    """Nothing blocks delivery: every message of the topic is acknowledged or with a consumer."""
    NO_CONSUMER = "no-consumer"
    NO_PERMITS = "no-permits"
    UNACKED_LIMIT_CONSUMER = "unacked-limit-of-consumer"
    UNACKED_LIMIT_SUBSCRIPTION = "unacked-limit-of-subscription"
    ACK_STATE = "acknowledgements-beyond-what-is-stored"
    CONNECTION_FULL = "connection-not-writable"
    RATE_LIMIT = "rate-limit"
    FAILOVER_DELAY = "failover-delay"
    HASH_DRAINING = "hash-draining"
    HASH_UNASSIGNED = "hash-without-consumer"
    LOOK_AHEAD_LIMIT = "look-ahead-limit"
    CHUNKS_WAIT = "chunks-wait-for-their-consumer"
    DELAYED = "delayed"
    DELAY_PAUSED = "reading-paused-by-delays"
    DELAY_SCAN = "delayed-entries-being-found-again"
    UNREADABLE = "unreadable"
    TRANSACTIONAL = "transactional-entry"
    READING = "reading"
    FENCED = "fenced"
    UNACKED = "waits-for-acknowledgement"
    """The messages were delivered, and their consumer has not acknowledged them yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """One fact. A field that does not apply is None, 0 or empty."""

    kind: BlockerKind
    text: str
    """One sentence for people, with the numbers."""
    advice: str = ""
    """The action that would end it; empty if there is nothing to do but wait."""
    consumer: str | None = None
    position: Position | None = None
    """The first entry that waits."""
    entries: int = 0
    """The number of entries that wait for this, as far as it is known."""
    messages: int = 0
    """The number of messages in these entries; at least this many unless `Explanation.is_exact`."""
    key_hash: int | None = None
    until_ms: int | None = None
    """Wall time at which it ends by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """All facts about one subscription at one moment."""

    subscription: str
    type: str
    mark_delete: Position
    next_read: Position | None
    backlog_entries: int
    backlog_messages: int
    is_exact: bool
    """Whether the numbers of messages are exact. If not, they are numbers of entries: more messages may wait."""
    blockers: tuple[Blocker, ...]

    @property
    def is_blocked(self) -> bool:
        """Whether an entry waits for another reason than that its consumer has not acknowledged it yet."""
        return any(blocker.kind not in (BlockerKind.CAUGHT_UP, BlockerKind.UNACKED) for blocker in self.blockers)


class Progress(enum.StrEnum):
    """How far one entry has come on one subscription."""

    ACKNOWLEDGED = "acknowledged"
    WITH_CONSUMER = "with-consumer"
    WAITS_FOR_REDELIVERY = "waits-for-redelivery"
    DELAYED = "delayed"
    NOT_READ = "not-read"
    READ = "read"
    """Read, and no consumer is known to have it: delivered on Exclusive or Failover, or left out of a full delayed
    index."""
    NOT_THERE = "not-there"
    """The topic does not have such an entry: not yet, or not any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionState:
    """One entry on one subscription, as a reason to keep the entry or to delete it."""

    position: Position
    progress: Progress
    consumer: str | None = None
    unacked_messages: int = 0
    redelivery_count: int = 0
    entries_before: int = 0
    """With NOT_READ: the number of unacknowledged entries that are delivered before this one."""
