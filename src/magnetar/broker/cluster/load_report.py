"""Load reports: what brokers write about themselves and about bundles, in the form of Pulsar's modular load manager.

Purpose:   A broker's report is its registration, too: it has the addresses by which clients and brokers reach it. The
           leader keeps averages of every bundle, and writes them down, so that the next leader does not begin anew.
Format:    LocalBrokerData, BundleData and TimeAverageBrokerData of Pulsar 4.2.4, as JSON with the fields in its order.
           An average over n samples becomes one over n + 1 with each sample, up to a greatest n; from then on old
           samples fade.
Read next: members.py, load_manager.py
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from magnetar.broker.cluster.placement import BundleLoad
from magnetar.broker.front_end import PULSAR
from magnetar.broker.ownership import BrokerAddress
from magnetar.broker.resources.documents import Document, decode, encode
from magnetar.errors import MalformedMetadataError

PULSAR_VERSION: Final = "4.2.4"
"""The release whose formats and interface these are; brokers and clients compare it."""
OWN_VERSION: Final = f"{PULSAR_VERSION}+magnetar"
"""How brokers of ours report it. What follows the plus sign does not count when releases are compared."""
MODULAR: Final = "org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerImpl"
"""The load manager that a broker must have to take part: brokers assign no bundle to one that has another."""
_EXTENSIBLE: Final = "ExtensibleLoadManagerImpl"
_SAMPLES_SHORT: Final = 10
_SAMPLES_LONG: Final = 1_000


@dataclass(frozen=True, slots=True)
class BundleStats:
    """The traffic of a bundle since the report before, per second, and what is connected to it now."""

    messages_in: float = 0.0
    bytes_in: float = 0.0
    messages_out: float = 0.0
    bytes_out: float = 0.0
    consumers: int = 0
    producers: int = 0
    topics: int = 0
    cache_bytes: int = 0

    @property
    def messages(self) -> float:
        return self.messages_in + self.messages_out

    @property
    def bytes(self) -> float:
        return self.bytes_in + self.bytes_out

    @classmethod
    def from_json(cls, value: Document) -> Self:
        return cls(
            float(value.get("msgRateIn", 0)),
            float(value.get("msgThroughputIn", 0)),
            float(value.get("msgRateOut", 0)),
            float(value.get("msgThroughputOut", 0)),
            int(value.get("consumerCount", 0)),
            int(value.get("producerCount", 0)),
            int(value.get("topics", 0)),
            int(value.get("cacheSize", 0)),
        )

    def to_json(self) -> Document:
        return {
            "msgRateIn": self.messages_in,
            "msgThroughputIn": self.bytes_in,
            "msgRateOut": self.messages_out,
            "msgThroughputOut": self.bytes_out,
            "consumerCount": self.consumers,
            "producerCount": self.producers,
            "topics": self.topics,
            "cacheSize": self.cache_bytes,
        }


@dataclass(frozen=True, slots=True)
class Amount:
    """How much of a resource is used, of how much. A resource that is not measured has the limit 0."""

    used: float = 0.0
    limit: float = 0.0

    @property
    def share(self) -> float:
        return self.used / self.limit if self.limit > 0 else 0.0

    @classmethod
    def from_json(cls, value: Document | None) -> Self:
        return cls(float((value or {}).get("usage", 0)), float((value or {}).get("limit", 0)))

    def to_json(self) -> Document:
        return {"usage": self.used, "limit": self.limit}


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources of a broker. CPU is in percent of a core, memory in MB."""

    cpu: Amount = Amount()
    memory: Amount = Amount()
    direct_memory: Amount = Amount()
    bandwidth_in: Amount = Amount()
    bandwidth_out: Amount = Amount()

    @property
    def busiest(self) -> float:
        """Returns the share of the resource that is used the most; 1 is all of it. Pulsar leaves out `memory`: Java
        fills its heap whatever the load is."""
        return max(each.share for each in (self.cpu, self.direct_memory, self.bandwidth_in, self.bandwidth_out))


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerReport:
    """What one broker writes about itself."""

    address: BrokerAddress
    usage: Usage = Usage()
    bundles: Mapping[str, BundleStats] = field(default_factory=dict)
    """Bundle, as text → its traffic; of all bundles that the broker owns."""
    gained: tuple[str, ...] = ()
    """The bundles that it owns now and did not own in the report before."""
    lost: tuple[str, ...] = ()
    updated_ms: int = 0
    started_ms: int = 0
    load_manager: str = MODULAR
    version: str = PULSAR_VERSION
    protocols: Mapping[str, str] = field(default_factory=dict)
    is_draining: bool = False
    """Whether it is to get no more bundles. Brokers of Apache ignore the field, and write none."""

    @property
    def is_modular(self) -> bool:
        return self.load_manager in ("", MODULAR)  # Releases before 3.0 do not write it.

    @property
    def is_extensible(self) -> bool:
        return self.load_manager.endswith(_EXTENSIBLE)

    @property
    def is_ours(self) -> bool:
        return self.version == OWN_VERSION

    @property
    def messages_per_s(self) -> float:
        return sum(each.messages for each in self.bundles.values())

    @property
    def bytes_per_s(self) -> float:
        return sum(each.bytes for each in self.bundles.values())

    def differs_by(self, other: BrokerReport) -> float:
        """Returns the largest change since the other report, as a share of what was before. The rule is Pulsar's."""
        return max(
            _change(other.messages_per_s, self.messages_per_s),
            _change(other.bytes_per_s, self.bytes_per_s),
            _change(len(other.bundles), len(self.bundles)),
            abs(other.usage.busiest - self.usage.busiest),
        )

    def encode(self) -> bytes:
        return encode(self.to_json())

    def to_json(self) -> Document:
        stats = self.bundles.values()
        ours = {"isDraining": True} if self.is_draining else {}
        urls = {"webServiceUrl": self.address.http_url, "pulsarServiceUrl": self.address.urls.get(PULSAR)}
        return {name: url for name, url in urls.items() if url} | {
            "persistentTopicsEnabled": True,
            "nonPersistentTopicsEnabled": True,
            "cpu": self.usage.cpu.to_json(),
            "memory": self.usage.memory.to_json(),
            "directMemory": self.usage.direct_memory.to_json(),
            "bandwidthIn": self.usage.bandwidth_in.to_json(),
            "bandwidthOut": self.usage.bandwidth_out.to_json(),
            "msgThroughputIn": float(sum(each.bytes_in for each in stats)),
            "msgThroughputOut": float(sum(each.bytes_out for each in stats)),
            "msgRateIn": float(sum(each.messages_in for each in stats)),
            "msgRateOut": float(sum(each.messages_out for each in stats)),
            "lastUpdate": self.updated_ms,
            "lastStats": {bundle: each.to_json() for bundle, each in self.bundles.items()},
            "numTopics": sum(each.topics for each in stats),
            "numBundles": len(self.bundles),
            "numConsumers": sum(each.consumers for each in stats),
            "numProducers": sum(each.producers for each in stats),
            "bundles": list(self.bundles),
            "lastBundleGains": list(self.gained),
            "lastBundleLosses": list(self.lost),
            "brokerVersionString": self.version,
            "protocols": dict(self.protocols),
            "advertisedListeners": {
                name: {"brokerServiceUrl": url} for name, url in self.address.listeners.get(PULSAR, {}).items()
            },
            "loadManagerClassName": self.load_manager,
            "startTimestamp": self.started_ms,
            "maxResourceUsage": self.usage.busiest,
            "loadReportType": "LocalBrokerData",
            **ours,
        }

    @classmethod
    def decode(cls, broker_id: str, path: str, value: bytes) -> Self:
        """Raises MalformedMetadataError."""
        document = decode(path, value)
        try:
            return cls._from_json(broker_id, document)
        except (AttributeError, TypeError, ValueError) as error:
            raise MalformedMetadataError(f"{path} is not the report of a broker: {error}") from None

    @classmethod
    def _from_json(cls, broker_id: str, document: Document) -> Self:
        return cls(
            address=_address(broker_id, document),
            usage=Usage(
                Amount.from_json(document.get("cpu")),
                Amount.from_json(document.get("memory")),
                Amount.from_json(document.get("directMemory")),
                Amount.from_json(document.get("bandwidthIn")),
                Amount.from_json(document.get("bandwidthOut")),
            ),
            bundles={name: BundleStats.from_json(each) for name, each in (document.get("lastStats") or {}).items()},
            gained=tuple(document.get("lastBundleGains") or ()),
            lost=tuple(document.get("lastBundleLosses") or ()),
            updated_ms=int(document.get("lastUpdate") or 0),
            started_ms=int(document.get("startTimestamp") or 0),
            load_manager=str(document.get("loadManagerClassName") or ""),
            version=str(document.get("brokerVersionString") or ""),
            protocols=dict(document.get("protocols") or {}),
            is_draining=document.get("isDraining") is True,
        )


def _address(broker_id: str, document: Document) -> BrokerAddress:
    def url(name: str) -> str:
        return str(document.get(name) or document.get(f"{name}Tls") or "")

    pulsar = url("pulsarServiceUrl")
    listeners = {
        name: str(each.get("brokerServiceUrl") or each.get("brokerServiceUrlTls") or "")
        for name, each in (document.get("advertisedListeners") or {}).items()
    }
    return BrokerAddress(broker_id, url("webServiceUrl"), {PULSAR: pulsar} if pulsar else {}, {PULSAR: listeners})


def _change(before: float, after: float) -> float:
    if before == after:
        return 0.0
    return abs(before - after) / before if before else float("inf")


# --- averages of bundles ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Average:
    """The mean traffic of a bundle over its last samples."""

    samples_max: int
    samples: int = 0
    bytes_in: float = 0.0
    bytes_out: float = 0.0
    messages_in: float = 0.0
    messages_out: float = 0.0

    def with_sample(self, stats: BundleStats) -> Average:
        count = min(self.samples + 1, self.samples_max)

        def updated(mean: float, sample: float) -> float:
            return ((count - 1) * mean + sample) / count

        return Average(
            self.samples_max,
            count,
            updated(self.bytes_in, stats.bytes_in),
            updated(self.bytes_out, stats.bytes_out),
            updated(self.messages_in, stats.messages_in),
            updated(self.messages_out, stats.messages_out),
        )

    @classmethod
    def from_json(cls, value: Document) -> Self:
        return cls(
            max(1, int(value.get("maxSamples", 1))),
            int(value.get("numSamples", 0)),
            float(value.get("msgThroughputIn", 0)),
            float(value.get("msgThroughputOut", 0)),
            float(value.get("msgRateIn", 0)),
            float(value.get("msgRateOut", 0)),
        )

    def to_json(self) -> Document:
        return {
            "maxSamples": self.samples_max,
            "numSamples": self.samples,
            "msgThroughputIn": self.bytes_in,
            "msgThroughputOut": self.bytes_out,
            "msgRateIn": self.messages_in,
            "msgRateOut": self.messages_out,
        }


@dataclass(frozen=True, slots=True)
class BundleAverages:
    """BundleData: the averages of one bundle over ten samples, and over a thousand."""

    short: Average = Average(_SAMPLES_SHORT)
    long: Average = Average(_SAMPLES_LONG)
    topics: int = 0

    def with_sample(self, stats: BundleStats) -> BundleAverages:
        return BundleAverages(self.short.with_sample(stats), self.long.with_sample(stats), stats.topics)

    def load(self, now: BundleStats) -> BundleLoad:
        """Returns what the bundle costs: its average rates over ten samples, and its topics and clients of now."""
        mean = self.short
        return BundleLoad(
            mean.messages_in + mean.messages_out,
            mean.bytes_in + mean.bytes_out,
            now.topics,
            now.consumers + now.producers,
        )

    @classmethod
    def decode(cls, path: str, value: bytes) -> Self:
        """Raises MalformedMetadataError."""
        document = decode(path, value)
        try:
            return cls(
                Average.from_json(document["shortTermData"]),
                Average.from_json(document["longTermData"]),
                int(document.get("topics", 0)),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise MalformedMetadataError(f"{path} is not the load of a bundle: {error!r}") from None

    def encode(self) -> bytes:
        return encode(self.to_json())

    def to_json(self) -> Document:
        return {"shortTermData": self.short.to_json(), "longTermData": self.long.to_json(), "topics": self.topics}


def encode_broker_averages(bundles: Iterable[BundleAverages]) -> bytes:
    """Returns the TimeAverageBrokerData of the broker that owns these bundles."""
    terms: dict[str, list[Average]] = {"shortTerm": [], "longTerm": []}
    for each in bundles:
        terms["shortTerm"].append(each.short)
        terms["longTerm"].append(each.long)
    document: dict[str, Any] = {}
    for term, averages in terms.items():
        document |= {
            f"{term}MsgThroughputIn": float(sum(each.bytes_in for each in averages)),
            f"{term}MsgThroughputOut": float(sum(each.bytes_out for each in averages)),
            f"{term}MsgRateIn": float(sum(each.messages_in for each in averages)),
            f"{term}MsgRateOut": float(sum(each.messages_out for each in averages)),
        }
    return encode(document)
