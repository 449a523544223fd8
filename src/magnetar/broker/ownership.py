"""Ownership: which broker serves a topic.

Seam:      lookups ask `owner_of`; a topic is loaded only while `owns` says so; who loses a topic hears it through
           `listen` and unloads it. That two owners never both acknowledge is not promised here but by the topic's log
           (fencing and compare-and-set).
Here:      one broker that owns everything. Several brokers and bundles are another implementation of the same class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from magnetar.broker.names import TopicName

Lost = Callable[[TopicName], None]


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """How clients reach a broker."""

    broker_id: str
    """`host:port` of its HTTP side, as Pulsar has it."""
    pulsar_url: str
    http_url: str
    listeners: Mapping[str, str] = field(default_factory=dict)
    """Name of an advertised listener → URL."""

    def url_for(self, listener: str) -> str | None:
        """The URL of the named listener, or of the broker itself without a name; None if there is no such listener."""
        return self.listeners.get(listener) if listener else self.pulsar_url


@dataclass(frozen=True, slots=True)
class Owner:
    address: BrokerAddress
    is_here: bool


class Ownership(ABC):
    @abstractmethod
    async def owner_of(self, topic: TopicName) -> Owner:
        """The broker that serves the topic, which becomes its owner if there is none. ServiceNotReadyError: nobody."""

    @abstractmethod
    def owns(self, topic: TopicName) -> bool:
        """Whether this broker may serve the topic now."""

    @abstractmethod
    def listen(self, lost: Lost) -> Callable[[], None]:
        """Calls `lost` for each loaded topic that another broker owns from now on; the returned function ends that."""


class SoleOwnership(Ownership):
    """The only broker of its cluster."""

    def __init__(self, address: BrokerAddress) -> None:
        self._owner = Owner(address, is_here=True)

    async def owner_of(self, topic: TopicName) -> Owner:
        del topic
        return self._owner

    def owns(self, topic: TopicName) -> bool:
        del topic
        return True

    def listen(self, lost: Lost) -> Callable[[], None]:
        del lost  # Nobody takes anything.
        return lambda: None
