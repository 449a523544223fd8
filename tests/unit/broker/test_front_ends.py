from __future__ import annotations

import dataclasses

import pytest

from magnetar.broker.broker import Broker
from magnetar.broker.front_end import PULSAR, Endpoint, FrontEndStatistics
from magnetar.broker.pulsar.front_end import PulsarFrontEnd
from magnetar.broker.service import BrokerService
from magnetar.config.pulsar import PulsarConfig
from magnetar.errors import NotAllowedError
from magnetar.ledger.client import LedgerClient
from magnetar.runtime.metrics import Metrics
from magnetar.testing.cluster import BookieCluster


class OtherFrontEnd:
    """Speaks no protocol; remembers what the broker asked of it."""

    protocol = "other"

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def bind(self) -> Endpoint:
        self.calls.append("bind")
        return Endpoint("other://host:9092", {"outside": "other://outside:9093"})

    async def start(self, service: BrokerService) -> None:
        assert service.address.urls["other"] == "other://host:9092"
        self.calls.append("start")

    def observe(self, metrics: Metrics) -> None:
        metrics.gauge_callback("magnetar_other_connections", "Connections of the other protocol.", lambda: 2.0)

    def statistics(self) -> FrontEndStatistics:
        return FrontEndStatistics(connections=2, opened=5, refused=1, lookups=3)

    def stop_listening(self) -> None:
        self.calls.append("stop_listening")

    async def aclose(self) -> None:
        self.calls.append("aclose")


async def test_a_broker_serves_several_front_ends() -> None:
    async with BookieCluster(1) as cluster:
        config = dataclasses.replace(cluster.config, pulsar=PulsarConfig(port=0, advertised_listeners="a:pulsar://a:1"))
        pulsar, other, metrics = PulsarFrontEnd(config.pulsar), OtherFrontEnd(), Metrics()
        async with LedgerClient(cluster.store, config, cluster.runtime) as client:
            broker = await Broker.open(
                *(config, cluster.runtime, cluster.store, client, metrics),
                front_ends=[pulsar, other],
                http_address="host:8080",
            )
            try:
                address = broker.service.address
                assert address.url_for(PULSAR) == f"pulsar://127.0.0.1:{pulsar.port}"
                assert address.url_for(PULSAR, "a") == "pulsar://a:1"
                assert address.url_for("other", "outside") == "other://outside:9093"
                assert (address.broker_id, address.http_url) == ("host:8080", "http://host:8080")
                with pytest.raises(NotAllowedError, match="no advertised listener 'a'; it has: outside"):
                    address.url_for("other", "a")
                with pytest.raises(NotAllowedError, match="does not serve clients of third"):
                    address.url_for("third")
                assert broker.front_end_statistics() == other.statistics()
                assert b"magnetar_other_connections 2" in metrics.render()
                assert other.calls == ["bind", "start"]
            finally:
                await broker.aclose()
    assert other.calls == ["bind", "start", "stop_listening", "aclose"]
