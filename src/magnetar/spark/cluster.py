"""A cluster as Spark's processes see it: the broker's answers over HTTP, and ledgers straight from and to the bookies.

    found = cluster(ClusterOptions.of("pulsar://127.0.0.1:6650"))     # on any thread
    segments = run(found.segments("persistent://public/default/orders"), timeout=30.0)
    for first, entries in iterate(found.read_entries(segments.ledgers[0], 0, 99)): ...

Threads:   one `Cluster` per process and options, made at first use, dropped in a forked child. It lives on the loop's
           thread (loop_thread.py): its methods are awaited there. The values may be used anywhere, and pickled.
Failure:   a broker that is away, or busy, is asked again for `PATIENCE_S`; then BrokerUnavailableError.
           `BookieUnavailableError` from `read_entries`: read through the broker instead. `TopicNotFoundError`: no such
           topic. `HttpRefusedError`: anything else that the broker refuses, with its reason.
Order:     entries are read in pieces of about `PIECE_BYTES`, by the mean size of the ledger's entries, several at
           once. If a piece is larger than a bookie's answer, it comes in several answers, in the same place of the
           order. The end is the confirmed entry of the segment, which the ledger's own writer reported; no bookie is
           asked. An error comes when every entry before it was returned, so the lost or damaged entry is the next one.
           Where entries are spread over bookies, a read fails for all its entries: it is repeated with half as many
           until it asks for that one alone.
Read next: client/http.py, metadata/relay.py; admin/topics/segments.py
"""

from __future__ import annotations

import asyncio
import base64
import os
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from magnetar.client.http import HttpClient
from magnetar.config.ledger import LedgerConfig
from magnetar.config.metadata import MetadataConfig
from magnetar.config.root import Config
from magnetar.errors import (
    BookieUnavailableError,
    ConfigError,
    EntryAbsentError,
    EntryDamagedError,
    EntryOutOfRangeError,
    EntryUnavailableError,
    HttpRefusedError,
    InvalidCursorPositionError,
    LedgerOffloadedError,
    MagnetarError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    TopicNotFoundError,
)
from magnetar.ids import LedgerId
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.metadata import ledger_keys
from magnetar.ledger.reading.reader import LedgerReader
from magnetar.metadata.bookkeeper.ledger_codec import decode
from magnetar.metadata.bookkeeper.ledger_metadata import Versioned
from magnetar.metadata.relay import RelayedStore
from magnetar.names import NamespaceName, TopicName
from magnetar.runtime.system import SystemRuntime
from magnetar.spark.loop_thread import run
from magnetar.staging.register import StagingSettings
from magnetar.topic.position import Position
from magnetar.wire.bookkeeper.digests import DigestType
from magnetar.wire.bookkeeper.frames import Buffer

SERVICE_URL: Final = "pulsar://127.0.0.1:6650"

PATIENCE_S: Final = 30.0
"""A broker that is killed is back in a few seconds, or another one has its topics."""
AT_ONCE_MAX: Final = 16
"""Requests to brokers at a time: half of the connections that a process may have to them."""
_OPEN_S_MAX: Final = 60.0
_NOT_FOUND: Final = 404
_NOT_A_PLACE: Final = 412
_TOPIC_QUERY: Final = {"checkAllowAutoCreation": "false"}


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
        default = "http://" + ",".join(f"[{host}]:8080" if ":" in host else f"{host}:8080" for host in hosts)
        return cls(service, (admin_url or default).strip().rstrip("/"))


def _host(address: str) -> str:
    """Returns an empty text if it has no host."""
    try:
        return urlsplit(f"//{address}").hostname or ""
    except ValueError:  # Half a bracket.
        return ""


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """How the cluster's broker writes ledgers."""

    ledgers_root: str
    staging: StagingSettings
    max_message_bytes: int

    @classmethod
    def of(cls, json: Mapping[str, Any]) -> ClusterSettings:
        staging = StagingSettings(
            ensemble_size=int(json["ensembleSize"]),
            write_quorum=int(json["writeQuorum"]),
            ack_quorum=int(json["ackQuorum"]),
            digest_type=DigestType[json["digestType"]],
        )
        return cls(str(json["ledgersRoot"]), staging, int(json["maxMessageBytes"]))


@dataclass(frozen=True, slots=True)
class SegmentLedger:
    """One ledger of a topic, with all that a reader needs besides the bookies."""

    ledger_id: int
    entries: int
    """The number of confirmed entries: ids 0 … entries − 1 may be read."""
    size_bytes: int
    first_index: int | None
    """The index of its first message; without entries, that of the next message. None: the broker could not read its
    first entry."""
    metadata: bytes
    """BookKeeper's ledger metadata, as stored. Empty: the ledger is no longer on bookies."""
    digest_type: DigestType
    password: bytes
    offloaded: bool = False
    """Whether it was moved to tiered storage; otherwise, if it is no longer on bookies, it is lost."""

    @classmethod
    def of(cls, json: Mapping[str, Any]) -> SegmentLedger:
        first_index = int(json["firstIndex"])
        return cls(
            ledger_id=int(json["ledgerId"]),
            entries=int(json["entries"]),
            size_bytes=int(json["sizeBytes"]),
            first_index=None if first_index < 0 else first_index,
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
    last_confirmed: Position
    next_index: int


@dataclass(frozen=True, slots=True)
class FoundPlace:
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


class Cluster:
    """Lives on the loop's thread. Made by `cluster` or `open_cluster`."""

    def __init__(self, options: ClusterOptions, settings: ClusterSettings, http: HttpClient) -> None:
        runtime = SystemRuntime()
        metadata = MetadataConfig(
            url="memory:",  # Not used: the store is the broker's.
            ledgers_root=settings.ledgers_root,
            operation_timeout_ms=round(PATIENCE_S * 1000),
        )
        ledger = LedgerConfig(read_batch_bytes_max=ANSWER_BYTES_MAX, read_entries_max=PIECE_ENTRIES_MAX)
        self.options = options
        self.settings = settings
        self.http = http
        self.store = RelayedStore(http, metadata, runtime.entropy.random)
        self.ledgers = LedgerClient(self.store, Config(metadata=metadata, ledger=ledger), runtime)
        """Started: it knows the bookies. Writers made with it belong to the code that made them."""

    @classmethod
    async def open(cls, options: ClusterOptions) -> Cluster:
        """Connects. Raises BrokerUnavailableError, or ConfigError if something else answers."""
        http = HttpClient(options.admin_url, SystemRuntime().entropy.random)
        try:
            opened = cls(options, await _settings(http, options), http)
            await opened.ledgers.start()
        except BaseException:
            await http.aclose()
            raise
        return opened

    async def aclose(self) -> None:
        """Closes it, for tests: a process of Spark's ends without it."""
        await self.ledgers.aclose()
        await self.store.aclose()
        await self.http.aclose()

    async def segments(self, topic: str, from_ledger: int = 0) -> Segments:
        """Returns the ledgers of one topic or one partition (`…-partition-3`), without those below `from_ledger`. The
        broker opens the topic and never makes it. Raises TopicNotFoundError."""
        return Segments.of(await self._ask(topic, "segments", {"from": from_ledger or None}))

    async def wait(self, topic: str, after: Position, timeout_ms: int = 500) -> Tail:
        """Returns the topic's end, at once when something is confirmed after `after`, otherwise after the time."""
        json = await self._ask(topic, "segments/wait", {"after": after, "timeoutMs": timeout_ms})
        if json.get("busy"):  # The broker has its maximum of waiting requests.
            await asyncio.sleep(timeout_ms / 1000)
        return Tail(position_of(json["lastConfirmed"]), int(json["nextIndex"]))

    async def cut(
        self, topic: str, start: Position, end: Position, *, messages: int | None = None, size_bytes: int | None = None
    ) -> Position:
        """Returns the first position not to read, so that [start, it) has at most about this many messages and bytes:
        whole entries, at least one, at most up to `end`."""
        query = {"from": start, "to": end, "messages": messages, "bytes": size_bytes}
        return position_of(await self._ask(topic, "cut", query))

    async def place(self, topic: str, text: str) -> FoundPlace:
        """Finds a place from text: earliest, latest, 12:34, -1000, -10m, a time, index:42 (topic/seek_targets.py).
        Raises InvalidCursorPositionError if it is not a place."""
        return FoundPlace.of(await self._ask(topic, "place", {"at": text}))

    async def partitions(self, topic: str) -> int:
        """Returns the number of partitions; 0 if the topic is not partitioned or does not exist."""
        try:
            json = await self._ask(topic, "partitions", _TOPIC_QUERY)
        except TopicNotFoundError:
            return 0
        return int(json["partitions"])

    async def topics_of(self, namespace: str) -> list[str]:
        """Returns all persistent topics, sorted; of a partitioned topic its partitions."""
        name = NamespaceName.parse(namespace)
        return sorted(await self.http.get_json(f"/admin/v2/persistent/{name}", patience_s=PATIENCE_S))

    async def _ask(self, topic: str, what: str, query: Mapping[str, object]) -> Any:
        path = f"/admin/v2/{TopicName.parse(topic).rest_path}/{what}"
        try:
            return await self.http.get_json(path, query, patience_s=PATIENCE_S)
        except HttpRefusedError as error:
            if error.status == _NOT_FOUND:
                raise TopicNotFoundError(str(error)) from error
            if error.status == _NOT_A_PLACE and what == "place":
                raise InvalidCursorPositionError(str(error)) from error
            raise

    def read_entries(self, ledger: SegmentLedger, first: int, last: int) -> AsyncIterator[Chunk]:
        """Reads entries `first` … `last` (both included) of a closed ledger, or of the confirmed part of an open one,
        straight from the bookies: chunks of (id of the first entry, payloads as they are stored), in order, no gap.

        Several chunks are read ahead, bounded in bytes; every digest is verified. No broker and no metadata is asked,
        unless a bookie was replaced. BookieUnavailableError: the bookies that have them cannot be reached, ask the
        broker. EntryAbsentError, NoSuchLedgerError: they were deleted. EntryDamagedError: every copy is damaged.
        """
        return read_entries(ledger, first, last, self.ledgers.context)


async def _settings(http: HttpClient, options: ClusterOptions) -> ClusterSettings:
    wrong = f"adminUrl {options.admin_url} is not the HTTP port of a broker that can serve Spark"
    try:
        json = await http.get_json("/admin/v2/magnetar/cluster", patience_s=PATIENCE_S)
    except HttpRefusedError as error:
        raise ConfigError(f"{wrong}: it answered with status {error.status} ({error})") from error
    try:
        return ClusterSettings.of(json)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{wrong}: it answered {str(json)[:100]}") from error


# --- one per process --------------------------------------------------------------------------------------------------

_opened: dict[ClusterOptions, Cluster] = {}
_opening: dict[ClusterOptions, asyncio.Task[Cluster]] = {}  # Touched on the loop's thread alone.


def cluster(options: ClusterOptions) -> Cluster:
    """Returns the one of this process, made at the first call, which blocks; on the loop's thread use
    `open_cluster`."""
    found = _opened.get(options)
    return run(open_cluster(options), _OPEN_S_MAX) if found is None else found


async def open_cluster(options: ClusterOptions) -> Cluster:
    """Returns the same on the loop's thread. Calls during the opening wait for it."""
    if options in _opened:
        return _opened[options]
    task = _opening.get(options)
    if task is None:
        task = _opening[options] = asyncio.get_running_loop().create_task(Cluster.open(options))
        task.add_done_callback(lambda done: _on_opened(options, done))
    return await asyncio.shield(task)


def _on_opened(options: ClusterOptions, done: asyncio.Task[Cluster]) -> None:
    _opening.pop(options, None)
    if not done.cancelled() and done.exception() is None:
        _opened[options] = done.result()


def _forget() -> None:
    """Runs in a forked child: the connections are the parent's."""
    _opened.clear()
    _opening.clear()


os.register_at_fork(after_in_child=_forget)


PIECE_BYTES: Final = 2 * 2**20
PIECES_AHEAD: Final = 4
ANSWER_BYTES_MAX: Final = 4 * 2**20
"""The bytes of one request to a bookie: room for entries above the mean. It sends at most 5 MiB."""
PIECE_ENTRIES_MAX: Final = 4_000
_OVERHEAD_BYTES: Final = 40  # An entry's header and length, about.
_OLDER_THAN_STORED: Final = -1  # Metadata that is read anew replaces it, whatever its version.

Chunk = tuple[int, list[Buffer]]
"""The id of the first entry, and payloads as they are stored."""


async def read_entries(
    ledger: SegmentLedger, first: int, last: int, context: LedgerContext
) -> AsyncGenerator[Chunk, None]:
    """Yields entries `first` … `last`, both included, in order and without a gap."""
    if not 0 <= first <= last < ledger.entries:
        raise EntryOutOfRangeError(
            f"entries {first} to {last} of ledger {ledger.ledger_id}: it has {ledger.entries} confirmed ones"
        )
    reader = _open(ledger, context)
    step = entries_per_piece(ledger)
    following = first
    pieces: deque[asyncio.Task[_Piece]] = deque()
    loop = asyncio.get_running_loop()
    try:
        while following <= last or pieces:
            while following <= last and len(pieces) < PIECES_AHEAD:
                end = min(following + step - 1, last)
                pieces.append(loop.create_task(_read_piece(reader, following, end)))
                following = end + 1
            piece = await pieces[0]
            pieces.popleft()
            if piece.payloads:
                yield first, piece.payloads
                first += len(piece.payloads)
            if piece.error is not None:
                raise piece.error
    finally:
        for task in pieces:
            task.cancel()
        await asyncio.gather(*pieces, return_exceptions=True)


def entries_per_piece(ledger: SegmentLedger) -> int:
    mean = ledger.size_bytes // max(1, ledger.entries) + _OVERHEAD_BYTES
    return max(1, min(PIECE_BYTES // mean, PIECE_ENTRIES_MAX))


def _open(ledger: SegmentLedger, context: LedgerContext) -> LedgerReader:
    if not ledger.metadata and not ledger.offloaded:
        raise NoSuchLedgerError(f"ledger {ledger.ledger_id} was deleted, but its topic still lists it")
    if not ledger.metadata:
        raise LedgerOffloadedError(f"ledger {ledger.ledger_id} is not on bookies any more: it was offloaded")
    metadata = decode(LedgerId(ledger.ledger_id), ledger.metadata, node_created_ms=0)
    keys = ledger_keys(metadata, ledger.password, ledger.digest_type)
    return LedgerReader(Versioned(metadata, _OLDER_THAN_STORED), keys, context)


@dataclass(frozen=True, slots=True)
class _Piece:
    payloads: list[Buffer]
    error: MagnetarError | None = None
    """The reason why it ends before its last entry."""


async def _read_piece(reader: LedgerReader, first: int, last: int) -> _Piece:
    payloads: list[Buffer] = []
    asked = last - first + 1
    while first <= last:
        asked = min(asked, last - first + 1)
        try:
            found = await reader.read_some(first, first + asked - 1)
        except (EntryAbsentError, EntryDamagedError) as error:
            if asked == 1:
                return _Piece(payloads, error)
            asked //= 2  # One of these fails, and need not be the first.
        except (EntryUnavailableError, MetadataUnavailableError) as error:
            unreachable = BookieUnavailableError(str(error))
            unreachable.__cause__ = error
            return _Piece(payloads, unreachable)
        except MagnetarError as error:
            return _Piece(payloads, error)
        else:
            payloads += [entry.payload for entry in found]
            first += len(found)
    return _Piece(payloads)
