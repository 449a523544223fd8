"""Settings of the Pulsar front end: where clients connect, and limits against overload."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from magnetar.config.bookie import ALL_INTERFACES, LOCAL_HOST
from magnetar.config.knobs import check_knobs, knob
from magnetar.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarConfig:
    """Connections of Pulsar clients, which speak Pulsar's binary protocol.

    All brokers of a cluster should have the same `message_bytes_max`, because clients see it. The other values may
    differ between brokers. Changes need a restart.
    """

    port: int = knob(
        6650, "TCP port for Pulsar clients. 0: any free port.", within=(0, 65_535), pulsar="brokerServicePort"
    )
    listen_host: str = knob(
        "",
        "Address to listen on. Empty: all interfaces if `advertised_host` is set, otherwise only this machine, "
        "because a broker does not authenticate its clients.",
        pulsar="bindAddress",
    )
    advertised_host: str = knob(
        "",
        "Host name or address of this broker that clients get from a topic lookup. Empty: the address it listens on.",
        pulsar="advertisedAddress",
    )
    advertised_listeners: str = knob(
        "",
        "Further addresses of this broker as `name:pulsar://host:port`, separated by commas. A client chooses one "
        "with its listener name.",
        pulsar="advertisedListeners",
    )

    # --- messages ---

    message_bytes_max: int = knob(
        5 * 2**20,
        "Largest payload of one entry in bytes. Clients split or refuse larger messages, and bookies must accept "
        "frames of this size.",
        within=(1024, 64 * 2**20),
        pulsar="maxMessageSize",
    )
    expose_broker_entry_metadata: bool = knob(
        False,
        "Send the index and the broker's timestamp of each entry to clients that ask for them.",
        pulsar="exposingBrokerEntryMetadataToClientEnabled",
    )

    # --- connections ---

    keep_alive_interval_ms: int = knob(
        30_000,
        "Milliseconds of silence after which a client is pinged. After twice this time its connection is closed.",
        within=(10, 3_600_000),
        pulsar="keepAliveIntervalSeconds",
    )
    liveness_check_timeout_ms: int = knob(
        5_000,
        "Milliseconds that a connected client may take to answer a ping when another client claims its producer name "
        "or its Exclusive subscription. After that, the new client replaces it.",
        within=(1, 600_000),
        pulsar="connectionLivenessCheckTimeoutMillis",
    )
    # A connection costs a few kilobytes while it is idle.
    connections_max: int = knob(
        20_000,
        "Number of client connections that a broker accepts. Further ones get an error and are closed.",
        within=(1, 1_000_000),
        pulsar="brokerMaxConnections",
    )
    # Fairness: this many requests of one connection are started before the next connection's turn.
    requests_per_connection_max: int = knob(
        256,
        "Largest number of unanswered requests of one connection, not counting publishes and acknowledgements. At the "
        "limit, the broker stops reading from the connection.",
        within=(1, 1_000_000),
    )
    # Apache has no such limits. A producer costs the broker 0.6 KB and a consumer 1 KB, besides their metadata.
    producers_per_connection_max: int = knob(
        100_000,
        "Number of producers that one connection may have. It bounds the memory that one client can take.",
        within=(1, 1_000_000),
    )
    consumers_per_connection_max: int = knob(
        100_000,
        "Number of consumers that one connection may have. It bounds the memory that one client can take.",
        within=(1, 1_000_000),
    )

    # --- overload ---

    # Apache's limit counts entries, too, and is 1,000: with us one read of a socket may bring some thousands.
    pending_publishes_per_connection_max: int = knob(
        10_000,
        "Largest number of published entries of one connection that are not durable yet. At the limit, the broker "
        "stops reading from the connection.",
        within=(1, 1_000_000),
        pulsar="maxPendingPublishRequestsPerConnection",
    )
    # One write of a cursor answers all that wait: a client that acknowledges faster than disks write is slowed down.
    pending_receipts_per_connection_max: int = knob(
        10_000,
        "Largest number of acknowledgements of one connection that wait for a receipt, which is sent when they are "
        "stored. At the limit, the broker stops reading from the connection.",
        within=(1, 1_000_000),
    )
    publish_memory_bytes_max: int = knob(
        256 * 2**20,
        "Memory in bytes for published entries of all connections that are not durable yet. At the limit, the broker "
        "stops reading from connections that publish.",
        within=(2**20, 2**40),
        pulsar="maxMessagePublishBufferSizeInMB",
    )
    # As much as `publish_memory_bytes_max`: frames held back for it have been read in part already.
    receive_bytes_max: int = knob(
        256 * 2**20,
        "Memory in bytes, over all connections, for frames that are incomplete or waiting. At the limit, the broker "
        "stops reading large incomplete frames until others are finished.",
        within=(2**16, 2**40),
    )
    frame_timeout_ms: int = knob(
        30_000,
        "Milliseconds without further data after which a connection with an incomplete frame is closed.",
        within=(10, 3_600_000),
    )
    lookups_in_progress_max: int = knob(
        50_000,
        "Largest number of unanswered topic lookups over all connections. Further lookups are answered with `too many "
        "requests`.",
        within=(1, 1_000_000),
        pulsar="maxConcurrentLookupRequest",
    )
    # Responses that a client does not read wait in memory; deliveries stop long before.
    unsent_bytes_max: int = knob(
        16 * 2**20,
        "Largest number of unsent bytes for a client that does not read its responses. At the limit, the broker stops "
        "reading the client's requests.",
        within=(2**16, 2**30),
    )
    topics_pattern_characters_max: int = knob(
        50,
        "Length of the longest topic pattern that a broker matches. For a longer pattern, the client gets all topics "
        "and matches them itself.",
        within=(1, 10_000),
        pulsar="subscriptionPatternMaxLength",
    )
    metadata_bytes_max: int = knob(
        1_024,
        "Total length of the metadata (keys and values) that a producer or consumer may have.",
        within=(0, 10 * 2**20),
        pulsar="maxConsumerMetadataSize",
    )

    def __post_init__(self) -> None:
        check_knobs(self)
        if not self.advertised_host and self.listen_host in ALL_INTERFACES:
            raise ConfigError(
                f"pulsar.listen_host {self.listen_host} means all interfaces, which no client can connect to: "
                "set pulsar.advertised_host to the name by which clients reach this machine"
            )
        for name, url in self.listeners():
            if not name or not _is_listener(url):
                raise ConfigError(
                    f"pulsar.advertised_listeners: {name}:{url} is not a listener: write name:pulsar://host:port"
                )

    @property
    def listens_on(self) -> str:
        """The address to give to `create_server`."""
        return self.listen_host or (ALL_INTERFACES[0] if self.advertised_host else LOCAL_HOST)

    @property
    def reached_at(self) -> str:
        """The host that clients connect to."""
        return self.advertised_host or self.listens_on

    def names(self) -> tuple[str, ...]:
        """The hosts under which clients may know this broker."""
        hosts = (urlsplit(url).hostname for _, url in self.listeners())
        return (self.reached_at, *(host for host in hosts if host))

    def listeners(self) -> Iterator[tuple[str, str]]:
        """Name and URL of each advertised listener."""
        for part in filter(None, map(str.strip, self.advertised_listeners.split(","))):
            name, _, url = part.partition(":")
            yield name.strip(), url.strip()


def _is_listener(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme == "pulsar" and bool(parts.hostname) and bool(parts.port)
    except ValueError:  # Half a bracket, or an invalid port.
        return False
