"""Settings of the Pulsar front end: where clients connect, and how much of them is taken on at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from magnetar.config.bookie import ALL_INTERFACES, LOCAL_HOST
from magnetar.config.knobs import check_knobs, knob
from magnetar.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarConfig:
    """The binary protocol of Pulsar. Brokers may differ in everything but `message_bytes_max`, which clients see."""

    port: int = knob(
        6650, "Where clients connect. 0: any that is free.", at_least=0, at_most=65_535, pulsar="brokerServicePort"
    )
    listen_host: str = knob(
        "",
        "The address to listen on. Empty: every interface if `advertised_host` is set, else only this machine, because "
        "clients are not asked who they are.",
        pulsar="bindAddress",
    )
    advertised_host: str = knob(
        "",
        "The name or address that lookups answer with. Empty: what it listens on.",
        pulsar="advertisedAddress",
    )
    advertised_listeners: str = knob(
        "",
        "Other addresses of this broker, chosen by the client's listener name: `name:pulsar://host:port`, separated by "
        "commas.",
        pulsar="advertisedListeners",
    )

    # --- messages ---

    message_bytes_max: int = knob(
        5 * 2**20,
        "The largest payload of one entry; clients split or refuse what is larger. A bookie's frame must hold it.",
        at_least=1024,
        at_most=64 * 2**20,
        pulsar="maxMessageSize",
    )
    expose_broker_entry_metadata: bool = knob(
        False,
        "Give clients that ask for it the index and the broker's time of each entry.",
        pulsar="exposingBrokerEntryMetadataToClientEnabled",
    )

    # --- connections ---

    keep_alive_interval_ms: int = knob(
        30_000,
        "A client that sent nothing for this long is pinged; after twice as long it is gone.",
        at_least=10,
        at_most=3_600_000,
        pulsar="keepAliveIntervalSeconds",
    )
    liveness_check_timeout_ms: int = knob(
        5_000,
        "How long the old connection of a producer or consumer may take to answer a ping when a new one claims its "
        "name or its Exclusive subscription; it is dead else.",
        at_least=1,
        at_most=600_000,
        pulsar="connectionLivenessCheckTimeoutMillis",
    )
    # A connection costs its receive buffer: 5,000 idle ones must not hurt the others.
    connections_max: int = knob(
        20_000,
        "Connections of clients; further ones are told so and closed.",
        at_least=1,
        at_most=1_000_000,
        pulsar="brokerMaxConnections",
    )
    # What one connection may do to the others: this many requests are begun before it is another's turn.
    requests_per_connection_max: int = knob(
        256,
        "Requests of one connection that are not answered yet (publishes and acks aside); then it is not read.",
        at_least=1,
        at_most=1_000_000,
    )
    producers_per_connection_max: int = knob(
        10_000, "Producers that one connection may have.", at_least=1, at_most=1_000_000
    )
    consumers_per_connection_max: int = knob(
        10_000, "Consumers that one connection may have.", at_least=1, at_most=1_000_000
    )

    # --- overload ---

    # Apache's limit counts entries, too, and is 1,000: with us one read of a socket may bring some thousands.
    pending_publishes_per_connection_max: int = knob(
        10_000,
        "Entries of one connection that are not durable yet; then it is not read.",
        at_least=1,
        at_most=1_000_000,
        pulsar="maxPendingPublishRequestsPerConnection",
    )
    # One write of a cursor answers all that wait: a client that acknowledges faster than disks write is slowed down.
    pending_receipts_per_connection_max: int = knob(
        10_000,
        "Acknowledgements of one connection that wait for their receipt, which comes when the cursor's write is "
        "durable; then it is not read.",
        at_least=1,
        at_most=1_000_000,
    )
    publish_memory_bytes_max: int = knob(
        256 * 2**20,
        "Bytes of all entries that are not durable yet; then connections that publish are not read.",
        at_least=2**20,
        at_most=2**40,
        pulsar="maxMessagePublishBufferSizeInMB",
    )
    lookups_in_progress_max: int = knob(
        50_000,
        "Lookups of all connections that are not answered yet; further ones are answered `too many requests`.",
        at_least=1,
        at_most=1_000_000,
        pulsar="maxConcurrentLookupRequest",
    )
    # What a client does not read waits here; deliveries stop long before.
    unsent_bytes_max: int = knob(
        16 * 2**20,
        "Answers that wait for a client that does not read them; beyond this it is not read either.",
        at_least=2**16,
        at_most=2**30,
    )
    topics_pattern_characters_max: int = knob(
        50,
        "Longer patterns are not matched by the broker: the client gets all topics and matches itself.",
        at_least=1,
        at_most=10_000,
        pulsar="subscriptionPatternMaxLength",
    )
    metadata_bytes_max: int = knob(
        1_024,
        "Keys and values that a consumer or producer may say about itself.",
        at_least=0,
        at_most=10 * 2**20,
        pulsar="maxConsumerMetadataSize",
    )

    def __post_init__(self) -> None:
        check_knobs(self)
        if not self.advertised_host and self.listen_host in ALL_INTERFACES:
            raise ConfigError(
                f"pulsar.listen_host {self.listen_host} is every interface, which is nowhere to connect to: "
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
        """The host that clients are told."""
        return self.advertised_host or self.listens_on

    def listeners(self) -> Iterator[tuple[str, str]]:
        """Name and URL of each advertised listener."""
        for part in filter(None, map(str.strip, self.advertised_listeners.split(","))):
            name, _, url = part.partition(":")
            yield name.strip(), url.strip()


def _is_listener(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme == "pulsar" and bool(parts.hostname) and bool(parts.port)
    except ValueError:  # Half a bracket, or a port that is none.
        return False
