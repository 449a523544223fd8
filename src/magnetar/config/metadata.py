"""Settings of the metadata store, for every kind of store that the URL may name: embedded, or on ZooKeeper."""

from __future__ import annotations

import re
from dataclasses import dataclass

from magnetar.config.knobs import check_knobs, knob
from magnetar.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteConfig:
    """The embedded metadata store, used when `metadata.url` begins with `sqlite:`.

    One process owns the file, so no other process needs the same values. Changes need a restart.
    """

    # One transaction is one sync of the disk; its size bounds how long the first caller in it waits for the last.
    group_operations_max: int = knob(
        1_000,
        "Number of metadata operations that may share one SQLite transaction, and so one disk sync.",
        within=(1, 100_000),
        pulsar="metadataStoreBatchingMaxOperations",
    )

    def __post_init__(self) -> None:
        check_knobs(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooKeeperConfig:
    """The connection to ZooKeeper, used when `metadata.url` begins with `zk://`.

    All nodes of a cluster must have the same `acl`, and with `creator` the same `auth_digest`: otherwise one node could
    not read what another creates. The files may differ between processes. Changes need a restart.
    """

    tls: bool = knob(
        False,
        "Encrypt the connection to ZooKeeper with TLS. `metadata.url` must then name the secure ports of the servers.",
        kafka="zookeeper.ssl.client.enable",
    )
    tls_ca_file: str = knob(
        "",
        "PEM file with the certificate authorities that are trusted to sign a ZooKeeper server's certificate. Empty: "
        "those that the operating system trusts.",
        kafka="zookeeper.ssl.truststore.location",
    )
    tls_cert_file: str = knob(
        "",
        "PEM file with the client certificate that is sent to ZooKeeper servers that ask for one.",
        kafka="zookeeper.ssl.keystore.location",
    )
    tls_key_file: str = knob(
        "",
        "PEM file with the private key of the client certificate. Not needed if `tls_cert_file` contains the key too.",
        kafka="zookeeper.ssl.keystore.location",
    )
    tls_verify: bool = knob(
        True,
        "Refuse a ZooKeeper server whose certificate does not match its host name. If false, TLS does not protect "
        "against an attacker between client and server.",
        kafka="zookeeper.ssl.endpoint.identification.algorithm",
    )
    auth_digest: str = knob(
        "",
        "`user:password` for ZooKeeper's digest authentication; empty: no authentication. Set it in the file or in "
        "the environment: a command-line flag is visible to other users of the machine.",
        secret=True,
    )
    acl: str = knob(
        "open",
        "Access to the ZooKeeper nodes that magnetar creates: anyone may change them (`open`), or only clients with "
        "the same `auth_digest` (`creator`).",
        choices=("open", "creator"),
        bookkeeper="zkEnableSecurity",
        kafka="zookeeper.set.acl",
    )

    def __post_init__(self) -> None:
        check_knobs(self)
        self._check_tls()
        self._check_authentication()

    def _check_tls(self) -> None:
        for name in ("tls_ca_file", "tls_cert_file", "tls_key_file"):
            if getattr(self, name) and not self.tls:
                raise ConfigError(f"zookeeper.{name} is set but zookeeper.tls is false: set tls = true, or drop {name}")
        if self.tls_key_file and not self.tls_cert_file:
            raise ConfigError("zookeeper.tls_key_file is set without zookeeper.tls_cert_file: set the certificate too")

    def _check_authentication(self) -> None:
        user, _, password = self.auth_digest.partition(":")
        if self.auth_digest and not (user and password):
            raise ConfigError("zookeeper.auth_digest does not have the form user:password")
        if self.acl == "creator" and not self.auth_digest:
            raise ConfigError(
                "zookeeper.acl is creator but zookeeper.auth_digest is empty: "
                "without it no client could read the nodes that magnetar creates; set auth_digest, or acl = open"
            )


_ABSOLUTE_PATH = re.compile(r"(/(?!\.{1,2}(/|$))[^/\x00-\x1f\x7f]+)+")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataConfig:
    """The metadata store that the nodes of a cluster share.

    All nodes of a cluster must have the same `url` and `configuration_url` (the order of servers does not matter),
    `ledgers_root` and `value_bytes_max`. The other values may differ between processes. Changes need a restart.
    """

    url: str = knob(
        "sqlite:magnetar-data/metadata.db",
        "URL of the metadata store: `memory:`, `sqlite:PATH`, or `zk://host1:2181,host2:2181/chroot` for ZooKeeper.",
        bookkeeper="metadataServiceUri",
        pulsar="metadataStoreUrl",
        kafka="zookeeper.connect",
    )
    configuration_url: str = knob(
        "",
        "URL of the metadata store that has clusters, tenants, namespaces and partitioned topics, if several clusters "
        "share one. Empty: `url`.",
        pulsar="configurationMetadataStoreUrl",
    )
    # Below 100 ms a pause of the garbage collector ends a session; above an hour a dead node is noticed too late.
    session_timeout_ms: int = knob(
        30_000,
        "Milliseconds without contact after which a session expires and its ephemeral nodes are removed. A ZooKeeper "
        "server may change this value to fit its own limits.",
        within=(100, 3_600_000),
        bookkeeper="zkTimeout",
        pulsar="metadataStoreSessionTimeoutMillis",
        kafka="zookeeper.session.timeout.ms",
    )
    operation_timeout_ms: int = knob(
        10_000,
        "Milliseconds that one metadata operation may take, including time spent reconnecting. A slower operation "
        "fails.",
        within=(1, 3_600_000),
        pulsar="metadataStoreOperationTimeoutSeconds",
    )
    connect_timeout_ms: int = knob(
        10_000,
        "Milliseconds that the first connection to the metadata store may take. After that, the process stops with an "
        "error.",
        within=(1, 3_600_000),
        kafka="zookeeper.connection.timeout.ms",
    )
    # ZooKeeper's jute.maxbuffer, 1,048,575 by default, must hold the path and the value of a request.
    value_bytes_max: int = knob(
        1_000_000,
        "Largest value in bytes that may be written to a node; a larger one is refused before it is sent. Keep it "
        "below the `jute.maxbuffer` of your ZooKeeper servers, which close the connection when a request is larger.",
        within=(1_000, 1_040_000),
    )
    operations_in_flight_max: int = knob(
        10_000,
        "Number of metadata operations that one session may have in progress. Further operations fail at once as "
        "unavailable.",
        within=(1, 1_000_000),
        kafka="zookeeper.max.in.flight.requests",
    )
    ledgers_root: str = knob(
        "/ledgers",
        "Path of the metadata node under which BookKeeper's metadata is stored.",
        bookkeeper="zkLedgersRootPath",
    )

    def __post_init__(self) -> None:
        check_knobs(self)
        if not self.url:
            raise ConfigError("metadata.url is empty: use memory:, sqlite:PATH or zk://host:2181/chroot")
        if not _ABSOLUTE_PATH.fullmatch(self.ledgers_root):
            raise ConfigError(f"metadata.ledgers_root: {self.ledgers_root!r} is not an absolute path such as /ledgers")
