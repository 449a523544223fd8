"""Brokers whose cluster shares its configuration with others, in a ZooKeeper of its own."""

from __future__ import annotations

from pathlib import Path

from kazoo.client import KazooClient

from magnetar.testing.processes.cluster import ProcessCluster
from magnetar.testing.processes.zookeeper import ZooKeeperServer
from workloads.admin_http import ask
from workloads.pulsar_load import connect

PATIENCE_S = 60.0


def nodes_below(address: str, path: str) -> set[str]:
    client = KazooClient(address)
    client.start(timeout=PATIENCE_S)
    try:
        return set(client.get_children(path)) if client.exists(path) else set()
    finally:
        client.stop()
        client.close()


def test_configuration_is_kept_in_the_shared_store_and_owners_and_logs_in_the_local_one(tmp_path: Path) -> None:
    with ZooKeeperServer(tmp_path / "shared") as shared:
        settings = (f"metadata.configuration_url={shared.url}",)
        with ProcessCluster(tmp_path / "c", 2, brokers=2, broker_settings=settings) as cluster:
            one, two = cluster.brokers
            ask(one.admin_url, "PUT", "/admin/v2/namespaces/public/n", {}, patience_s=PATIENCE_S)
            ask(two.admin_url, "PUT", "/admin/v2/persistent/public/n/t/partitions", 2, patience_s=PATIENCE_S)
            client = connect(one.url, tmp_path / "client.log")
            consumer = client.subscribe("persistent://public/n/t", "s")
            client.create_producer("persistent://public/n/t").send(b"x")
            assert consumer.receive(round(PATIENCE_S * 1_000)).data() == b"x"
            client.close()
            local = cluster.metadata.removeprefix("zk://")
            assert nodes_below(shared.address, "/admin") == {"clusters", "policies", "partitioned-topics"}
            assert nodes_below(shared.address, "/") == {"admin", "zookeeper"}
            assert nodes_below(local, "/admin") == {"local-policies"}
            assert nodes_below(local, "/namespace/public") == {"n"}
            assert nodes_below(local, "/managed-ledgers/public/n/persistent") == {"t-partition-0", "t-partition-1"}
