from __future__ import annotations

from tests.contracts.bundle_ownership import BundleOwnershipContract


class TestOnZooKeeper(BundleOwnershipContract):
    """The harness is the folder's own."""
