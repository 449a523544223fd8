"""The contract of the metadata store: one list of behaviours that memory, SQLite and ZooKeeper all show.

A test module subclasses `MetadataStoreContract` and brings a `harness` fixture. Each test's name is the behaviour.
Read next: metadata_harness.py, then the parts
"""

from __future__ import annotations

from magnetar.testing.contracts.metadata_cache import CacheContract
from magnetar.testing.contracts.metadata_nodes import (
    NodesContract,
    RacesContract,
    SequencesContract,
    TransactionsContract,
)
from magnetar.testing.contracts.metadata_sessions import SessionsContract
from magnetar.testing.contracts.metadata_watches import WatchesContract


class MetadataStoreContract(
    NodesContract,
    SequencesContract,
    TransactionsContract,
    RacesContract,
    WatchesContract,
    SessionsContract,
    CacheContract,
):
    """Everything above; what a new kind of store subclasses."""
