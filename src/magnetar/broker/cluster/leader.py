"""Leader: one broker decides where bundles go; the others ask it.

Format:    `/loadbalance/leader` is an ephemeral node, LeaderBroker of Pulsar as JSON. The broker that makes it leads
           until its session ends. Brokers of Apache and ours take part in one election.
Failure:   Two brokers may believe for a moment that they lead. Neither does harm: an owner is decided by its node, and
           a wrong decision is only a bad place.
Read next: held_node.py, load_manager.py
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from random import Random
from typing import Final
from urllib.parse import urlsplit

from magnetar.broker.cluster.held_node import HeldNode
from magnetar.broker.ownership import BrokerAddress
from magnetar.broker.resources.documents import decode, encode
from magnetar.errors import MalformedMetadataError, StoreClosedError
from magnetar.metadata.store import MetadataStore

LEADER: Final = "/loadbalance/leader"


@dataclass(frozen=True, slots=True)
class LeaderBroker:
    broker_id: str
    http_url: str

    def encode(self) -> bytes:
        return encode({"brokerId": self.broker_id, "serviceUrl": self.http_url})

    @classmethod
    def decode(cls, value: bytes) -> LeaderBroker:
        """Raises MalformedMetadataError. Old releases write only the URL, from which the id follows."""
        document = decode(LEADER, value)
        url = str(document.get("serviceUrl") or "")
        broker_id = str(document.get("brokerId") or urlsplit(url).netloc)
        if not broker_id:
            raise MalformedMetadataError(f"{LEADER} names no broker: {document!r}")
        return cls(broker_id, url)


class Leadership:
    """Begun by `start`, ended by `aclose`, which makes room for another leader."""

    def __init__(self, store: MetadataStore, address: BrokerAddress, random: Random, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        ours = LeaderBroker(address.broker_id, address.http_url)
        self._node = HeldNode(
            store,
            LEADER,
            ours.encode(),
            random,
            is_about_us=lambda value: _leader_in(value) == ours,
            timeout_s=timeout_s,
        )

    @property
    def is_leader(self) -> bool:
        return self._node.is_held

    @property
    def known(self) -> LeaderBroker | None:
        """The leader as last seen; None between two leaders."""
        node = self._node.node
        return None if node is None else _leader_in(node.value)

    async def start(self) -> None:
        self._node.start()

    async def leader(self) -> LeaderBroker | None:
        """Returns the leader, and waits for the end of an election. None if that takes too long."""
        try:
            async with asyncio.timeout(self._timeout_s):
                while (found := self.known) is None:
                    await self._node.wait_seen()
        except (TimeoutError, StoreClosedError):
            return None
        return found

    async def aclose(self) -> None:
        await self._node.aclose()


def _leader_in(value: bytes) -> LeaderBroker | None:
    try:
        return LeaderBroker.decode(value)
    except MalformedMetadataError:
        return None
