"""Why nothing is delivered: facts a person or a program can act on, one per thing that holds entries back.

A fact names what holds, whom it concerns and what would end it. `Subscription.explain()` gathers them when asked;
nothing is kept for it on the way of an entry.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from magnetar.topic.position import Position


class Hold(enum.StrEnum):
    """What holds delivery. The values are part of the admin interface."""

    CAUGHT_UP = "caught-up"
    """Nothing: every entry of the topic is acknowledged or with a consumer."""
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
    """Delivered, not acknowledged: a consumer has it in hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """One fact. What does not apply is None or 0."""

    hold: Hold
    text: str
    """One sentence for people, with the numbers."""
    advice: str = ""
    """What would end it; empty if waiting is all there is to do."""
    consumer: str | None = None
    position: Position | None = None
    """The first entry that is held."""
    entries: int = 0
    """How many entries are held by this, as far as is known."""
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
    holdings: tuple[Holding, ...]

    @property
    def is_held(self) -> bool:
        """Whether something that could be delivered is not, for a reason other than that consumers have it in hand."""
        return any(holding.hold not in (Hold.CAUGHT_UP, Hold.UNACKED) for holding in self.holdings)


class Progress(enum.StrEnum):
    """How far one entry has come on one subscription."""

    ACKNOWLEDGED = "acknowledged"
    WITH_CONSUMER = "with-consumer"
    WAITS_FOR_REDELIVERY = "waits-for-redelivery"
    DELAYED = "delayed"
    NOT_READ = "not-read"
    READ = "read"
    """Read and not with anybody who is known: delivered on Exclusive or Failover, or delayed beyond the index."""
    NOT_THERE = "not-there"
    """The topic has no such entry (yet, or any more)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionState:
    """One entry on one subscription: what keeps it from being deleted, as far as this subscription goes."""

    position: Position
    progress: Progress
    consumer: str | None = None
    unacked_messages: int = 0
    redelivery_count: int = 0
    entries_before: int = 0
    """Unacknowledged entries before it, on NOT_READ: those that come first."""
