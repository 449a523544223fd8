"""What the demonstration asks its cluster, in the way in which a user does: the admin interface and the metadata."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from magnetar.cli.admin.client import AdminClient, topic_path
from magnetar.config.metadata import MetadataConfig
from magnetar.config.root import Config
from magnetar.ledger.client import LedgerClient
from magnetar.metadata.open import open_store
from magnetar.names import TopicName
from magnetar.runtime.system import SystemRuntime
from magnetar.testing.processes.cluster import ProcessCluster
from magnetar.testing.processes.servers import BrokerProcess

_TIMEOUT_S: Final = 10.0


class Questions:
    """Answers have the names of the processes, such as broker-1, in the place of ids with ports."""

    def __init__(self, cluster: ProcessCluster) -> None:
        self._metadata = cluster.metadata
        self._brokers = {broker.broker_id: broker for broker in cluster.brokers}
        self._bookies = {bookie.bookie_id: bookie.name for bookie in cluster.bookies}

    def owner(self, topic: str, asked: BrokerProcess) -> BrokerProcess | None:
        """The broker that serves the topic, as `magnetar explain --topic` has it. AdminError while that changes."""
        return self._brokers.get(_explained(topic, asked)["owner"])

    def reason(self, topic: str, asked: BrokerProcess) -> str:
        """Why this broker was chosen, as `magnetar explain --topic` prints it; empty if no broker remembers."""
        decision = _explained(topic, asked)["decision"]
        return "" if decision is None else self._named(decision["text"])

    def live_brokers(self, asked: BrokerProcess) -> list[BrokerProcess]:
        """Those whose session has not ended."""
        return [self._brokers[each["brokerId"]] for each in _admin(asked).get("magnetar/brokers")]

    def bookies_of(self, topic: str, asked: BrokerProcess) -> list[str]:
        """The names of the bookies that the topic's newest messages are sent to."""
        ledgers = _admin(asked).get(f"{topic_path(TopicName.parse(topic))}/internalStats")["ledgers"]
        ensemble = asyncio.run(_ensemble(self._metadata, ledgers[-1]["ledgerId"]))
        return sorted(self._bookies[bookie_id] for bookie_id in ensemble)

    def bookie_name(self, bookie_id: str) -> str:
        return self._bookies.get(bookie_id, bookie_id)

    def _named(self, text: str) -> str:
        for broker_id, broker in self._brokers.items():
            text = text.replace(f"broker {broker_id}", broker.name).replace(broker_id, broker.name)
        return text


def _admin(asked: BrokerProcess) -> AdminClient:
    return AdminClient(asked.admin_url, timeout_s=_TIMEOUT_S)


def _explained(topic: str, asked: BrokerProcess) -> dict[str, Any]:
    found: dict[str, Any] = _admin(asked).get(f"{topic_path(TopicName.parse(topic))}/explain")
    return found


async def _ensemble(metadata: str, ledger: int) -> Sequence[str]:
    config, runtime = Config(metadata=MetadataConfig(url=metadata)), SystemRuntime()
    async with await open_store(config, runtime) as store, LedgerClient(store, config, runtime) as client:
        return (await client.metadata(ledger)).fragments[-1].ensemble
