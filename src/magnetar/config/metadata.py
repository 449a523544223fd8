"""Settings of the metadata store, whichever store the URL names."""

from __future__ import annotations

import re
from dataclasses import dataclass

from magnetar.config.knobs import check_knobs, knob
from magnetar.errors import ConfigError

_ABSOLUTE_PATH = re.compile(r"(/(?!\.{1,2}(/|$))[^/\x00-\x1f\x7f]+)+")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataConfig:
    """The metadata store that a cluster shares.

    All nodes of a cluster must agree on `url` (the order of servers aside), `ledgers_root` and `value_bytes_max`; the
    others may differ per process. Changes need a restart.
    """

    url: str = knob(
        "sqlite:magnetar-data/metadata.db",
        "Where metadata is kept: `memory:`, `sqlite:PATH`, or `zk://host1:2181,host2:2181/chroot`.",
        bookkeeper="metadataServiceUri",
        pulsar="metadataStoreUrl",
        kafka="zookeeper.connect",
    )
    # Below 100 ms a pause of the garbage collector ends a session; above an hour nobody would call a node gone.
    session_timeout_ms: int = knob(
        30_000,
        "A session not heard of for this long is expired, and its ephemeral nodes with it. "
        "A ZooKeeper server may grant less or more, within its own limits.",
        at_least=100,
        at_most=3_600_000,
        bookkeeper="zkTimeout",
        pulsar="metadataStoreSessionTimeoutMillis",
        kafka="zookeeper.session.timeout.ms",
    )
    operation_timeout_ms: int = knob(
        10_000,
        "How long one operation may take, waiting for a lost connection to return included.",
        at_least=1,
        at_most=3_600_000,
        pulsar="metadataStoreOperationTimeoutSeconds",
    )
    connect_timeout_ms: int = knob(
        10_000,
        "How long the first connection may take before the process gives up.",
        at_least=1,
        at_most=3_600_000,
        kafka="zookeeper.connection.timeout.ms",
    )
    # ZooKeeper's jute.maxbuffer, 1,048,575 by default, must hold the path and the value of a request.
    value_bytes_max: int = knob(
        1_000_000,
        "Larger values are refused before they are sent; a ZooKeeper server refuses requests beyond its "
        "`jute.maxbuffer` by closing the connection.",
        at_least=1_000,
        at_most=1_040_000,
    )
    cache_entries_max: int = knob(
        10_000, "Nodes and lists of children that the cache holds; the least recently used leave first.", at_least=1
    )
    operations_in_flight_max: int = knob(
        10_000,
        "Operations of one session that are not answered yet; further ones are refused as unavailable.",
        at_least=1,
        at_most=1_000_000,
        kafka="zookeeper.max.in.flight.requests",
    )
    ledgers_root: str = knob(
        "/ledgers",
        "The node below which BookKeeper's layout lives.",
        bookkeeper="zkLedgersRootPath",
    )

    def __post_init__(self) -> None:
        check_knobs(self)
        if not self.url:
            raise ConfigError("metadata.url is empty: use memory:, sqlite:PATH or zk://host:2181/chroot")
        if not _ABSOLUTE_PATH.fullmatch(self.ledgers_root):
            raise ConfigError(f"metadata.ledgers_root: {self.ledgers_root!r} is not an absolute path such as /ledgers")
