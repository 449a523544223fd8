"""Ownership: which broker serves a topic.

Lookups ask `owner_of`; a topic is loaded only while `owns` is true; a broker that loses a topic is called through
`listen` and unloads it. There is one implementation: one broker that owns everything. Several brokers and bundles are
another implementation of the same class.

Invariant: Two owners never both acknowledge. The topic's log guarantees that (fencing and compare-and-set), not this
           class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from magnetar.errors import NotAllowedError
from magnetar.names import TopicName

Lost = Callable[[TopicName], None]


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """How clients reach a broker."""

    broker_id: str
    """`host:port` of its HTTP side, as Pulsar has it."""
    http_url: str
    urls: Mapping[str, str]
    """Protocol → URL."""
    listeners: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Protocol → name of an advertised listener → URL."""

    def url_for(self, protocol: str, listener: str = "") -> str:
        """The URL of the named listener, or of the broker itself without a name."""
        listeners = self.listeners.get(protocol, {})
        url = listeners.get(listener) if listener else self.urls.get(protocol)
        if url is None and listener:
            known = ", ".join(sorted(listeners)) or "none"
            raise NotAllowedError(f"the broker has no advertised listener {listener!r}; it has: {known}")
        if url is None:
            raise NotAllowedError(f"the broker {self.broker_id} does not serve clients of {protocol}")
        return url


@dataclass(frozen=True, slots=True)
class Owner:
    address: BrokerAddress
    is_here: bool
    """Whether it is this broker. Otherwise the client connects to the other one, or asks it."""


class Ownership(ABC):
    @abstractmethod
    async def owner_of(self, topic: TopicName) -> Owner:
        """Returns the broker that serves the topic, made its owner if it has none. Raises ServiceNotReadyError without
        one."""

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
        del lost  # This broker owns everything, so no topic is ever lost.
        return lambda: None
