"""`__change_events` as the policies see it: a topic of keyed messages, wherever its owner is.

The broker gives an implementation to PolicyService. A message is one change: its key is the topic's full name, with
`__G__` in front for policies that all clusters share; its payload is an Avro PulsarEvent; no payload means that the
policies were deleted. The newest message of a key is all that counts, so the topic may be read compacted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from magnetar.broker.names import NamespaceName


@dataclass(frozen=True, slots=True)
class OutgoingEvent:
    """What a message of `__change_events` is made of."""

    key: str
    """`partition_key` of the metadata."""
    payload: bytes | None
    """None: `null_value` is set, and the payload is empty."""
    schema_version: bytes
    """`schema_version` of the metadata."""
    replicate_to: tuple[str, ...]
    """`replicate_to` of the metadata; empty: everywhere."""


@dataclass(frozen=True, slots=True)
class IncomingEvent:
    key: str
    payload: bytes | None
    schema_version: bytes | None
    position: tuple[int, int, int]
    """Partition (0 if there are none), ledger, entry."""


class EventsReader(Protocol):
    """Reads one namespace's `__change_events` from the beginning, all partitions of it, compacted. Both ways to ask it
    raise when it is of no use any more: another is opened."""

    async def read_available(self) -> Sequence[IncomingEvent]:
        """The next ones, some hundred at most; none at the end of the topic. Messages without a key are left out."""

    async def wait_for_more(self) -> None:
        """Returns when there may be more to read."""

    async def aclose(self) -> None: ...


class EventsTopics(Protocol):
    """The `__change_events` of all namespaces."""

    async def open_reader(self, namespace: NamespaceName) -> EventsReader | None:
        """None if the namespace has no such topic. Does not make one."""

    async def publish(self, namespace: NamespaceName, event: OutgoingEvent) -> tuple[int, int, int]:
        """Makes the topic if there is none; returns the position when the message is durable, in the reader's form."""
