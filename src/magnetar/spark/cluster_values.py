"""Values about a cluster and its topics: they can be pickled, hashed, and made from a broker's JSON."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from magnetar.errors import ConfigError
from magnetar.topic.position import Position
from magnetar.wire.bookkeeper.digests import DigestType

SERVICE_URL: Final = "pulsar://127.0.0.1:6650"
ADMIN_PORT: Final = 8080


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The addresses of a cluster. Hashable and picklable; equal ones share a `Cluster`."""

    service_url: str
    admin_url: str

    @classmethod
    def of(cls, service_url: str | None = None, admin_url: str | None = None) -> ClusterOptions:
        """Fills in the defaults: this machine; the admin interface on the same hosts, port 8080. Raises ConfigError."""
        service = (service_url or SERVICE_URL).strip()
        scheme, separator, rest = service.partition("://")
        hosts = [_host(part.strip()) for part in rest.rstrip("/").split(",")]
        if scheme not in ("pulsar", "pulsar+ssl") or not separator or not all(hosts):
            raise ConfigError(f"serviceUrl {service!r} is not a broker's address: write pulsar://HOST:6650")
        default = "http://" + ",".join(f"{_bracketed(host)}:{ADMIN_PORT}" for host in hosts)
        return cls(service, (admin_url or default).strip().rstrip("/"))


def _host(address: str) -> str:
    """Returns an empty text if it has no host."""
    try:
        return urlsplit(f"//{address}").hostname or ""
    except ValueError:  # Half a bracket.
        return ""


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """How the cluster's broker writes ledgers."""

    ledgers_root: str
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    digest_type: DigestType
    max_message_bytes: int

    @classmethod
    def of(cls, json: Mapping[str, Any]) -> ClusterSettings:
        return cls(
            ledgers_root=str(json["ledgersRoot"]),
            ensemble_size=int(json["ensembleSize"]),
            write_quorum=int(json["writeQuorum"]),
            ack_quorum=int(json["ackQuorum"]),
            digest_type=DigestType[json["digestType"]],
            max_message_bytes=int(json["maxMessageBytes"]),
        )


@dataclass(frozen=True, slots=True)
class SegmentLedger:
    """One ledger of a topic, with all that a reader needs besides the bookies."""

    ledger_id: int
    entries: int
    """The number of confirmed entries: ids 0 … entries − 1 may be read."""
    size_bytes: int
    closed: bool
    """Whether it is complete. The last ledger of a topic is open."""
    closed_ms: int
    """0 while it is open."""
    first_index: int | None
    """The index of its first message; without entries, that of the next message. None: the broker could not read its
    first entry."""
    first_publish_ms: int | None
    """The time when its first entry came to the broker, as far as it is known."""
    metadata: bytes
    """BookKeeper's ledger metadata, as stored. Empty: the ledger is no longer on bookies."""
    digest_type: DigestType
    password: bytes
    offloaded: bool = False
    """Whether it was moved to tiered storage; otherwise, if it is no longer on bookies, it is lost."""

    @classmethod
    def of(cls, json: Mapping[str, Any]) -> SegmentLedger:
        first_index, first_publish_ms = int(json["firstIndex"]), json.get("firstPublishMs")
        return cls(
            ledger_id=int(json["ledgerId"]),
            entries=int(json["entries"]),
            size_bytes=int(json["sizeBytes"]),
            closed=bool(json["closed"]),
            closed_ms=int(json["closedMs"]),
            first_index=None if first_index < 0 else first_index,
            first_publish_ms=None if first_publish_ms is None else int(first_publish_ms),
            metadata=base64.b64decode(json["metadata"]),
            digest_type=DigestType[json["digestType"]],
            password=base64.b64decode(json["password"]),
            offloaded=bool(json.get("offloaded", False)),  # Older brokers do not report it.
        )


@dataclass(frozen=True, slots=True)
class Segments:
    """A topic's ledgers at one moment, oldest first."""

    topic: str
    last_confirmed: Position
    """The last entry; entry id −1 of the first ledger (or of none: ledger −1) while the topic is empty."""
    next_index: int
    """The index of the message after `last_confirmed`."""
    earliest: Position
    """The first entry that is left; for an empty topic, the place of the next one."""
    terminated: bool
    ledgers: tuple[SegmentLedger, ...]
    publish_lag_ms: int = 0
    """The longest time between publishing and arrival in the topic, for messages of exactly-once sinks."""

    @classmethod
    def of(cls, json: Mapping[str, Any]) -> Segments:
        return cls(
            topic=str(json["topic"]),
            last_confirmed=position_of(json["lastConfirmed"]),
            next_index=int(json["nextIndex"]),
            earliest=position_of(json["earliest"]),
            terminated=bool(json["terminated"]),
            ledgers=tuple(SegmentLedger.of(each) for each in json["ledgers"]),
            publish_lag_ms=int(json.get("publishLagMs", 0)),  # Older brokers do not report it.
        )


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a topic."""

    last_confirmed: Position
    next_index: int


@dataclass(frozen=True, slots=True)
class FoundPlace:
    """The first message to read."""

    position: Position
    """The entry of the message. `EARLIEST` and `LATEST` of topic/position.py for those two words."""
    batch_index: int
    """−1: the whole entry; otherwise the number of messages of its batch before it."""
    index: int | None = None
    """The index of that message, or of the next one."""

    @classmethod
    def of(cls, json: Mapping[str, Any]) -> FoundPlace:
        index = json.get("index")
        return cls(position_of(json), int(json["batchIndex"]), None if index is None else int(index))


def position_of(json: Mapping[str, Any]) -> Position:
    return Position(int(json["ledgerId"]), int(json["entryId"]))
