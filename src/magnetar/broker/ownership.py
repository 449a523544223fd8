"""Ownership: which broker serves a topic.

Lookups ask `owner_of`; a topic is loaded only while `owns` is true; a broker that loses topics is called through
`listen` and unloads them. Here is the ownership of a broker that is alone. That of several brokers is in
broker/cluster/ownership.py.

Invariant: Two owners never both acknowledge. The topic's log guarantees that (fencing and compare-and-set), not this
           class.
"""

from __future__ import annotations

import asyncio
import enum
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

from magnetar.broker.resources.bundles import NamespaceBundle
from magnetar.broker.resources.resources import Resources
from magnetar.config.root import Config
from magnetar.errors import MagnetarError, NotAllowedError
from magnetar.names import TopicName
from magnetar.runtime.runtime import Runtime

if TYPE_CHECKING:
    from magnetar.broker.cluster.membership import Membership
    from magnetar.broker.topics.registry import Topics  # It needs an ownership.


class TopicSet(Protocol):
    """Such as a bundle."""

    def __contains__(self, topic: TopicName, /) -> bool: ...


Successor: TypeAlias = asyncio.Future["BrokerAddress | None"]
"""The next owner, once it is known. None: clients have to look it up."""

Lost: TypeAlias = Callable[[TopicSet, Successor | None], Awaitable[None]]
"""Begins to unload those of the topics that are loaded. What it returns ends when they are closed. Clients are informed
when the successor is known; at once without one."""


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
    """Whether it is this broker."""
    is_candidate: bool = False
    """Whether the topic has no owner yet: the client asks this other broker, which becomes the owner or knows it."""
    is_authoritative: bool = True
    """Whether a candidate was chosen to become the owner. Otherwise it is asked to choose one."""


class Acquired(enum.StrEnum):
    """How a broker became the owner of a bundle."""

    ALONE = "alone"
    """It is the only broker of its cluster."""
    CHOSEN = "chosen"
    """Another broker had chosen it."""
    CHOSEN_HERE = "chosen-here"
    """It had to choose a broker, and chose itself."""
    SPLIT = "split"
    """It owned the larger bundle that was split."""
    MERGED = "merged"
    """It owned the two bundles that were merged."""
    FOUND = "found"
    """The node was its own already: an earlier change was not finished, or not answered."""
    AGAIN = "again"
    """Its node was missing, because its session had expired or another client had deleted the node."""


@dataclass(frozen=True, slots=True)
class OwnerRecord:
    """The owner of a bundle, as the metadata has it."""

    address: BrokerAddress
    since_ms: int | None
    """When the record was made; None if the owner needs no record."""
    is_being_unloaded: bool = False


@dataclass(frozen=True, slots=True)
class OwnershipContext:
    """What a broker gives to the ownership that is made for it."""

    address: BrokerAddress
    resources: Resources
    config: Config
    runtime: Runtime


class Ownership(ABC):
    membership: Membership | None = None
    """The brokers of the cluster; None if this broker is the only one."""

    @abstractmethod
    async def owner_of(self, topic: TopicName, *, is_authoritative: bool = False) -> Owner:
        """Returns the broker that serves the topic, made its owner if it has none. ServiceNotReadyError without one.
        `is_authoritative`: another broker has chosen this one to become the owner."""

    @abstractmethod
    def owns(self, topic: TopicName) -> bool:
        """Whether this broker may serve the topic now."""

    @abstractmethod
    async def take_up(self, topic: TopicName) -> None:
        """Owns the topic if it is recorded as owned here, and is not: a process that was killed has left the record,
        and other brokers send clients here for it until that process's session has ended. Waits for this end; the
        caller brings the timeout. ServiceNotReadyError if the topic could not be owned."""

    def owned(self) -> Mapping[NamespaceBundle, float] | None:
        """Returns the bundles that are served here, with the loop's time since when; None if that is every bundle."""
        return None

    @abstractmethod
    def listen(self, lost: Lost) -> Callable[[], None]:
        """Calls `lost` with topics that this broker does not own from now on; the returned function ends that."""

    @abstractmethod
    async def start(self, topics: Topics) -> None:
        """Is called with the loaded topics when the broker serves clients. Other brokers may choose it from now on."""

    @abstractmethod
    async def give_up(self) -> None:
        """Passes all topics on to other brokers, before the broker stops."""

    async def wait_failed(self) -> MagnetarError:
        """Returns when the broker must stop because it cannot own anything any more, with the reason."""
        never: asyncio.Future[MagnetarError] = asyncio.get_running_loop().create_future()
        return await never

    @abstractmethod
    async def aclose(self) -> None:
        """Ends what runs in the background."""

    # --- bundles ------------------------------------------------------------------------------------------------------

    @abstractmethod
    async def owner_of_bundle(self, bundle: NamespaceBundle, *, is_authoritative: bool = False) -> Owner:
        """As `owner_of`."""

    @abstractmethod
    async def find_owner(self, bundle: NamespaceBundle) -> Owner | None:
        """Returns the broker that serves a bundle; None without one. ServiceNotReadyError while it changes."""

    @abstractmethod
    async def record_of(self, bundle: NamespaceBundle) -> OwnerRecord | None:
        """Returns what is recorded of a bundle's owner; None without one."""

    @abstractmethod
    def acquired(self, bundle: NamespaceBundle) -> Acquired | None:
        """Returns how this broker got a bundle; None if it does not own it."""

    @abstractmethod
    async def unload(self, bundle: NamespaceBundle, destination: str | None = None) -> None:
        """Closes the topics of a bundle that is served here, and lets another broker own it: the one with this id, if
        one is given."""

    @abstractmethod
    async def split(self, bundle: NamespaceBundle, at: int | None = None) -> None:
        """Divides a bundle that is served here, at this hash or in the middle. Its topics stay loaded."""

    async def merge(self, bundle: NamespaceBundle) -> None:
        """Makes a bundle and the next one of its namespace one, if both are served here. Their topics stay loaded."""
        raise NotAllowedError(f"bundle {bundle} is not merged: this broker is alone")


class SoleOwnership(Ownership):
    """The only broker of its cluster."""

    def __init__(self, context: OwnershipContext) -> None:
        self._owner = Owner(context.address, is_here=True)
        self._listeners: dict[Lost, None] = {}

    async def owner_of(self, topic: TopicName, *, is_authoritative: bool = False) -> Owner:
        del topic, is_authoritative
        return self._owner

    def owns(self, topic: TopicName) -> bool:
        del topic
        return True

    async def take_up(self, topic: TopicName) -> None:
        """Does nothing: every topic is owned."""

    def listen(self, lost: Lost) -> Callable[[], None]:
        self._listeners[lost] = None

        def stop() -> None:
            self._listeners.pop(lost, None)

        return stop

    async def start(self, topics: Topics) -> None:
        """Does nothing: no other broker could choose it."""

    async def give_up(self) -> None:
        """Does nothing: no other broker could serve a topic."""

    async def aclose(self) -> None:
        """Does nothing: nothing runs."""

    async def owner_of_bundle(self, bundle: NamespaceBundle, *, is_authoritative: bool = False) -> Owner:
        del bundle, is_authoritative
        return self._owner

    async def find_owner(self, bundle: NamespaceBundle) -> Owner | None:
        del bundle
        return self._owner

    async def record_of(self, bundle: NamespaceBundle) -> OwnerRecord | None:
        del bundle
        return OwnerRecord(self._owner.address, None)

    def acquired(self, bundle: NamespaceBundle) -> Acquired | None:
        del bundle
        return Acquired.ALONE

    async def unload(self, bundle: NamespaceBundle, destination: str | None = None) -> None:
        """Closes the topics; they are loaded again when they are used."""
        if destination not in (None, self._owner.address.broker_id):
            raise NotAllowedError(f"bundle {bundle} cannot be moved to {destination}: this broker is alone")
        for ended in [lost(bundle, None) for lost in list(self._listeners)]:
            await ended

    async def split(self, bundle: NamespaceBundle, at: int | None = None) -> None:
        del at
        raise NotAllowedError(f"bundle {bundle} is not divided: this broker is alone, so smaller bundles have no use")
