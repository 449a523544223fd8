"""History: what producers and consumers of one seed did, and what they were told. The truth to compare with.

Message:   named by its producer and sequence id, and with a payload of its own: whoever sees a payload knows all.
Sent:      handed to the client at least once. Stored: a receipt came. Failed: the client said that it will never be
           there. Neither: unknown, and it may or may not be there.
Acked:     asked is what a consumer wanted; confirmed is what it has a receipt for, with all of it durable.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from magnetar.client import MessageId

NOT_SAID = MessageId(-1, -1)
"""The receipt of a message that was there before."""


class Audited(NamedTuple):
    """A message that is in the topic when all is over."""

    id: MessageId
    producer: str
    sequence_id: int
    payload: bytes


@dataclass(slots=True)
class Sends:
    """Of one producer's name, over all its lives."""

    topic: str
    producer: str
    sent: int = 0
    """Sequence ids below this were handed to the client."""
    stored: dict[int, MessageId] = field(default_factory=dict)
    """By sequence id. The first receipt that said where it is, else −1:−1."""
    failed: dict[int, str] = field(default_factory=dict)

    def payload(self, sequence_id: int) -> bytes:
        return f"{self.topic[-7:]}/{self.producer}/{sequence_id}".encode()

    @property
    def first_open(self) -> int:
        """The first that has neither a receipt nor an end."""
        return next((at for at in range(self.sent) if at not in self.stored and at not in self.failed), self.sent)


@dataclass(slots=True)
class Stay:
    """A consumer between two moments at which the broker may begin anew: attached, made active, asked to redeliver."""

    consumer: str
    subscription: str
    topic: str
    is_ordered: bool
    """Each entry once and in order, nothing left out. Not so for Shared, and where redelivery was asked for."""
    entries: list[tuple[float, tuple[int, int]]] = field(default_factory=list)
    """When, and which."""


@dataclass(slots=True)
class Progress:
    """Of one subscription."""

    topic: str
    name: str
    seen: dict[MessageId, bytes] = field(default_factory=dict)
    asked: dict[MessageId, float] = field(default_factory=dict)
    """When it was first asked to be acknowledged."""
    asked_to: list[tuple[float, MessageId]] = field(default_factory=list)
    """The same, with all before."""
    confirmed: dict[MessageId, None] = field(default_factory=dict)
    confirmed_to: MessageId = NOT_SAID
    batch_sizes: dict[tuple[int, int], int] = field(default_factory=dict)

    def is_asked(self, message_id: MessageId, until_s: float) -> bool:
        when = self.asked.get(message_id)
        if when is not None and when <= until_s:
            return True
        return any(when <= until_s and message_id <= to for when, to in self.asked_to)

    def is_confirmed(self, message_id: MessageId) -> bool:
        return message_id in self.confirmed or message_id <= self.confirmed_to

    def confirmed_entries(self) -> list[tuple[int, int]]:
        """Whole entries that were received and of which every message is confirmed."""
        return [entry for entry in self.batch_sizes if self._is_whole(entry)]

    def _is_whole(self, entry: tuple[int, int]) -> bool:
        size = self.batch_sizes[entry]
        ids = [MessageId(*entry, index) for index in range(size)] if size else [MessageId(*entry)]
        return all(self.is_confirmed(message_id) for message_id in ids)


class History:
    def __init__(self) -> None:
        self.sends: dict[tuple[str, str], Sends] = {}
        """By topic and producer."""
        self.progress: dict[tuple[str, str], Progress] = {}
        """By topic and subscription."""
        self.stays: list[Stay] = []
        self.audits: dict[str, list[Audited]] = {}
        """Topic → everything in it, in order. Only at the end."""

    def add_producer(self, topic: str, producer: str) -> Sends:
        return self.sends.setdefault((topic, producer), Sends(topic, producer))

    def add_subscription(self, topic: str, name: str) -> Progress:
        return self.progress.setdefault((topic, name), Progress(topic, name))

    def of_topic(self, topic: str) -> Iterator[Sends]:
        return (sends for sends in self.sends.values() if sends.topic == topic)

    def subscriptions_of(self, topic: str) -> Iterator[Progress]:
        return (progress for progress in self.progress.values() if progress.topic == topic)
