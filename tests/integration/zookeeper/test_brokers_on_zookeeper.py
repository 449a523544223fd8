from __future__ import annotations

from tests.contracts.brokers import BrokersContract


class TestZooKeeper(BrokersContract):
    """The `harness` fixture of this folder brings a real server."""
