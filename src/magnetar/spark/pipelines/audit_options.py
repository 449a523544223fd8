"""What an audit is asked to do: its inputs, what counts as wrong, and where the findings go.

Checked:   here, before Spark starts; a mistake is a ConfigError that names the option.
Topics:    are compared under their full names. Names without a domain are completed as Pulsar's clients do it, but only
           when topics of a cluster are read: the topics of a Kafka log have no other name.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Final

from magnetar.client.topics import full_name
from magnetar.errors import ConfigError

DEFAULT_SERVICE_URL: Final = "pulsar://127.0.0.1:6650"
HEADER: Final = "magnetar-audit"  # The property or header that carries `producer:sequence`.
ROWS_SHOWN_MAX: Final = 1_000  # Of one table of the report: more is what the Parquet files are for.
_PARTITION: Final = re.compile(r"-partition-\d+$")


class Order(enum.Enum):
    """Within what a higher sequence must not come before a lower one."""

    PRODUCER = "producer"
    KEY = "key"
    """Of one producer and one key: what a Key_Shared subscription promises."""
    NONE = "none"


class Identity(enum.Enum):
    """How a stored message is told to be the one that was sent."""

    SEQUENCE = "sequence"
    """By the producer's name and the sequence id that Pulsar stores with every message."""
    HEADER = "header"
    """By the property that `magnetar.testing.audit_log` gives to messages of clients that have no sequence ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions:
    """Per run. Paths are what Spark understands: files, directories, globs, any file system that it has."""

    logs: tuple[str, ...]
    """JSON lines of producers and consumers, mixed as they like; docs/audit.md has the format."""
    topics: tuple[str, ...] = ()
    """Read through format("magnetar") as what is stored."""
    archive: str = ""
    """Parquet with the same columns instead, as `magnetar pipeline archive` writes it."""
    service_url: str = DEFAULT_SERVICE_URL
    admin_url: str = ""
    read_options: tuple[tuple[str, str], ...] = ()
    """More options of format("magnetar"), such as startingOffsets."""
    identity: Identity = Identity.SEQUENCE
    order: Order = Order.PRODUCER
    """Of what is stored."""
    received_order: Order = Order.PRODUCER
    """Of what one consumer received; NONE for a Shared subscription."""
    allow_missed: bool = False
    """Messages that a subscription did not receive are counted, but the audit passes."""
    allow_unexpected: bool = False
    """The same for messages that no log knows: a topic with other producers."""
    outage_ms: int = 500
    """A producer that waits so long for the next acknowledgement lives through an outage."""
    rows_shown: int = 50
    """In the tables of messages that the report has."""
    output: str = ""
    """A directory for verdicts.parquet, one row per message."""
    report: str = ""
    """A file for the HTML report."""
    title: str = "Delivery audit"

    def __post_init__(self) -> None:
        if not self.logs:
            raise ConfigError("audit: no logs are given; name at least one file of JSON lines")
        if self.topics and self.archive:
            raise ConfigError("audit: what is stored comes from topics or from an archive, not from both")
        if self.outage_ms < 1:
            raise ConfigError(f"audit: an outage lasts at least 1 ms, not {self.outage_ms}")
        if not 1 <= self.rows_shown <= ROWS_SHOWN_MAX:
            raise ConfigError(f"audit: the tables show 1 to {ROWS_SHOWN_MAX} messages, not {self.rows_shown}")

    @property
    def reads_stored(self) -> bool:
        return bool(self.topics or self.archive)

    @property
    def full_topics(self) -> tuple[str, ...]:
        """Sorted, each once, partitions counted as their topic."""
        return tuple(sorted({whole_topic(topic) for topic in self.topics}))


def whole_topic(topic: str) -> str:
    """As logs and stored messages are compared: under its full name, without the partition. InvalidNameError."""
    return full_name(_PARTITION.sub("", topic))
