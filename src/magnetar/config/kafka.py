"""Settings of the Kafka front end: where clients connect, and limits against overload."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.config.bookie import ALL_INTERFACES, LOCAL_HOST
from magnetar.config.knobs import check_knobs, knob
from magnetar.errors import ConfigError, InvalidNameError
from magnetar.names import NamespaceName


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaConfig:
    """Connections of Kafka clients, which speak Kafka's protocol to the same topics.

    All brokers of a cluster should have the same `enabled`, `namespace` and `message_bytes_max`, because clients see
    them. The other values may differ between brokers. Changes need a restart.
    """

    enabled: bool = knob(
        False,
        "Listen for Kafka clients. docs/kafka.md lists what they can do; transactions, for example, are missing.",
    )
    port: int = knob(9092, "TCP port for Kafka clients. 0: any free port.", within=(0, 65_535))
    listen_host: str = knob(
        "",
        "Address to listen on. Empty: all interfaces if `advertised_host` is set, otherwise only this machine, "
        "because a broker does not authenticate its clients.",
    )
    advertised_host: str = knob(
        "",
        "Host name or address of this broker that clients get with a topic's metadata. Empty: the address it listens "
        "on.",
    )
    advertised_port: int = knob(
        0, "Port that clients get with a topic's metadata. 0: the port it listens on.", within=(0, 65_535)
    )
    namespace: str = knob(
        "public/default",
        "Namespace of topics whose names have no slash. Topics of other namespaces are `tenant/namespace/topic`.",
    )

    retention_minutes: int = knob(
        10_080,
        "Minutes for which a topic keeps its messages if a Kafka client makes it without a retention of its own. It "
        "becomes a policy of the topic. -1: forever.",
        within=(-1, 2**31 - 1),
    )

    # --- messages ---

    message_bytes_max: int = knob(
        1_048_588,
        "Largest batch of one partition in bytes. Clients split larger batches, or refuse the message.",
        within=(1_024, 4 * 2**20),
    )
    # A decompressed batch becomes one message frame for Pulsar clients, whose limit this is.
    decompressed_bytes_max: int = knob(
        5 * 2**20,
        "Largest size in bytes to which a batch may be decompressed when it is converted for Pulsar clients.",
        within=(1_024, 64 * 2**20),
    )
    request_bytes_max: int = knob(
        100 * 2**20,
        "Largest request in bytes. A client that sends a larger one is disconnected.",
        within=(2**16, 2**30),
    )
    fetch_bytes_max: int = knob(
        8 * 2**20,
        "Largest answer to a fetch in bytes, whatever the client accepts. A single batch may exceed it.",
        within=(2**16, 2**30),
    )
    conversions_bytes_max: int = knob(
        64 * 2**20,
        "Memory in bytes for entries that were converted between Kafka's and Pulsar's form for readers of the other "
        "protocol.",
        within=(2**20, 2**36),
    )

    # --- connections ---

    connections_max: int = knob(
        20_000,
        "Number of client connections that a broker accepts. Further ones are closed at once.",
        within=(1, 1_000_000),
    )
    connection_idle_ms: int = knob(
        600_000,
        "Milliseconds of silence after which a client's connection is closed.",
        within=(1_000, 86_400_000),
    )
    partitions_per_connection_max: int = knob(
        10_000,
        "Number of partitions that one connection may write. It bounds the memory that one client can take.",
        within=(1, 1_000_000),
    )

    # --- groups ---

    offsets_partitions: int = knob(
        16,
        "Partitions of the topic in which groups and their offsets are kept. It is used when the topic is made, by the "
        "first group of a cluster, and never changes afterwards.",
        within=(1, 1_000),
    )
    offsets_retention_minutes: int = knob(
        10_080,
        "Minutes for which committed offsets are kept after the last member has left their group, or after the commit "
        "if it was later.",
        within=(1, 2**31 - 1),
    )
    group_initial_rebalance_delay_ms: int = knob(
        3_000,
        "Milliseconds that an empty group waits for more members before its partitions are assigned.",
        within=(0, 600_000),
    )
    group_session_timeout_ms_min: int = knob(
        6_000, "Shortest session timeout of a group's member, in milliseconds.", within=(1, 86_400_000)
    )
    group_session_timeout_ms_max: int = knob(
        1_800_000, "Longest session timeout of a group's member, in milliseconds.", within=(1, 86_400_000)
    )

    # --- overload ---

    pending_requests_per_connection_max: int = knob(
        1_000,
        "Largest number of unanswered requests of one connection. At the limit, the broker stops reading from the "
        "connection.",
        within=(1, 1_000_000),
    )
    publish_memory_bytes_max: int = knob(
        256 * 2**20,
        "Memory in bytes for batches of all connections that are not durable yet. At the limit, the broker stops "
        "reading from connections that produce.",
        within=(2**20, 2**40),
    )
    receive_bytes_max: int = knob(
        256 * 2**20,
        "Memory in bytes, over all connections, for requests that are incomplete or waiting. At the limit, the broker "
        "stops reading large incomplete requests until others are finished.",
        within=(2**16, 2**40),
    )
    frame_timeout_ms: int = knob(
        30_000,
        "Milliseconds without further data after which a connection with an incomplete request is closed.",
        within=(10, 3_600_000),
    )
    unsent_bytes_max: int = knob(
        16 * 2**20,
        "Largest number of unsent bytes for a client that does not read its answers. At the limit, the broker stops "
        "reading the client's requests.",
        within=(2**16, 2**30),
    )

    # --- time ---

    fetch_wait_ms_max: int = knob(
        60_000, "Longest time in milliseconds that a fetch waits for new messages.", within=(0, 600_000)
    )
    timestamp_after_max_ms: int = knob(
        3_600_000,
        "Milliseconds by which the timestamp of a record may be later than the broker's time. Later ones are refused.",
        within=(0, 2**53),
    )

    def __post_init__(self) -> None:
        check_knobs(self)
        if self.group_session_timeout_ms_min > self.group_session_timeout_ms_max:
            raise ConfigError("kafka.group_session_timeout_ms_min exceeds kafka.group_session_timeout_ms_max")
        if not self.advertised_host and self.listen_host in ALL_INTERFACES:
            raise ConfigError(
                f"kafka.listen_host {self.listen_host} means all interfaces, which no client can connect to: "
                "set kafka.advertised_host to the name by which clients reach this machine"
            )
        try:
            NamespaceName.parse(self.namespace)
        except InvalidNameError as error:
            raise ConfigError(f"kafka.namespace: {error}") from None

    @property
    def listens_on(self) -> str:
        """The address to give to `create_server`."""
        return self.listen_host or (ALL_INTERFACES[0] if self.advertised_host else LOCAL_HOST)

    @property
    def reached_at(self) -> str:
        """The host that clients connect to."""
        return self.advertised_host or self.listens_on
