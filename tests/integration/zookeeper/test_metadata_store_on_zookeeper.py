from __future__ import annotations

from tests.contracts.metadata_store import MetadataStoreContract


class TestZooKeeper(MetadataStoreContract):
    """The `harness` fixture of this folder brings a real server."""
