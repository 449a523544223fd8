"""FrontEnd: what a broker needs of one protocol's side towards clients. Each is a folder, such as broker/pulsar.

Order:     bind → start → stop_listening → aclose. The ports are taken before the broker exists, because its address has
           them; clients are served only when it is complete. At the end no more connections come, then the topics are
           unloaded, which informs every client, and then the connections are closed.
Read next: broker.py; pulsar/front_end.py
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from magnetar.broker.service import BrokerService
from magnetar.runtime.metrics import Metrics

PULSAR: Final = "pulsar"
"""The protocol whose addresses Pulsar's own documents name: those of clusters, brokers and lookups."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where clients of one protocol connect."""

    url: str
    listeners: Mapping[str, str] = field(default_factory=dict)
    """Name of an advertised listener → URL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontEndStatistics:
    connections: int
    """Open now."""
    opened: int
    refused: int
    lookups: int
    """In progress."""


class FrontEnd(Protocol):
    @property
    def protocol(self) -> str:
        """Its name, by which a broker's address lists its URL."""

    async def bind(self) -> Endpoint:
        """Takes the port, but no connection yet."""

    async def start(self, service: BrokerService) -> None:
        """From now on clients are served."""

    def observe(self, metrics: Metrics) -> None:
        """Registers the front end's own metrics."""

    def statistics(self) -> FrontEndStatistics: ...

    def stop_listening(self) -> None:
        """No more connections are accepted. Those that are open stay."""

    async def aclose(self) -> None:
        """Closes all connections, at any point of the order above."""


def total(statistics: Iterable[FrontEndStatistics]) -> FrontEndStatistics:
    each = list(statistics)
    return FrontEndStatistics(
        connections=sum(one.connections for one in each),
        opened=sum(one.opened for one in each),
        refused=sum(one.refused for one in each),
        lookups=sum(one.lookups for one in each),
    )
