"""Commands of the leader to other brokers: unload a bundle, split it, or merge it.

They are requests to the other broker's admin interface, as Pulsar's leader makes them, so both kinds of brokers take
them. A broker of Apache sends an unload that names a destination back to the leader; so it is named only to brokers of
ours, which use it to tell their clients where to go. Every leader remembers the destination itself.

Failure:   HttpRefusedError for a refusal. BrokerUnavailableError if the broker cannot be reached. A command that was
           not answered may have been done; the next round sees from the reports whether it was.
"""

from __future__ import annotations

from random import Random
from typing import Final, Protocol

from magnetar.broker.ownership import BrokerAddress
from magnetar.broker.resources.bundles import NamespaceBundle
from magnetar.client.http import HttpClient, succeeded

_SECONDS_MAX: Final = 60.0  # As long as a broker takes to answer any request; a bundle's topics are closed by then.


class BrokerCommands(Protocol):
    async def unload(self, broker: BrokerAddress, bundle: NamespaceBundle, destination: str | None) -> None:
        """Returns when the broker does not own the bundle any more."""

    async def split(self, broker: BrokerAddress, bundle: NamespaceBundle) -> None:
        """Returns when the bundle is divided in two, both owned by the broker."""

    async def merge(self, broker: BrokerAddress, bundle: NamespaceBundle) -> None:
        """Returns when the bundle and the next one are one, owned by the broker. Brokers of Apache cannot do it."""


class AdminCommands:
    """Commands over HTTP."""

    def __init__(self, random: Random) -> None:
        self._random = random

    async def unload(self, broker: BrokerAddress, bundle: NamespaceBundle, destination: str | None) -> None:
        query: dict[str, object] | None = None if destination is None else {"destinationBroker": destination}
        await self._put(broker, f"namespaces/{bundle}/unload", query)

    async def split(self, broker: BrokerAddress, bundle: NamespaceBundle) -> None:
        await self._put(broker, f"namespaces/{bundle}/split", {"unload": False})

    async def merge(self, broker: BrokerAddress, bundle: NamespaceBundle) -> None:
        await self._put(broker, f"magnetar/bundles/{bundle}/merge")

    async def _put(self, broker: BrokerAddress, path: str, query: dict[str, object] | None = None) -> None:
        async with HttpClient(broker.http_url, self._random, connections_max=1) as http:
            succeeded(await http.request("PUT", f"/admin/v2/{path}", query, timeout_s=_SECONDS_MAX))
