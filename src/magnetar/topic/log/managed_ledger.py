"""A topic's node in the metadata store, as Pulsar keeps it: its ledgers, its properties, and its end if it has one.

Opening an `OwnedNode` reads the node and recovers the topic's last ledger, which fences the broker that owned it
before. The first write makes this broker the owner: of two brokers that open a topic at the same moment one fails
there, and a broker that was only slow fails at its ledger or at the node. Every write also stores the index of the last
message, as Pulsar does.

Invariant: Every write names the version that it replaces. Another version means that another broker took the topic
           over: TopicFencedError. After a lost connection the node is read again and compared, never guessed.
Order:     One change at a time (`OwnedNode.change`): it decides on the state that the change before it has left.
Format:    /managed-ledgers/{tenant}/{namespace}/persistent/{encoded name} has ManagedLedgerInfo, plain; or 0x4778 u16 |
           size i32 | InfoMetadata | compressed ManagedLedgerInfo, which Pulsar writes if compression is configured.
           Both are read, plain is written. Nodes of cursors use the same compression around another message. An empty
           node is a new topic. Unknown fields, of the whole or of a ledger, are written back as they were read.
Failure:   A change that has begun runs to its end, even if its caller is cancelled. If it were interrupted, the node's
           version would be unknown, the topic might have no open ledger, and dropped ledgers would never be deleted.
Read next: ledger_roller.py, metadata/compare_and_set.py
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self, TypeVar

from google.protobuf.message import DecodeError, Message

from magnetar.errors import (
    BadVersionError,
    MalformedEntryError,
    MalformedMetadataError,
    MetadataError,
    NodeExistsError,
    NoNodeError,
    NoSuchLedgerError,
    TopicFencedError,
    TopicNotFoundError,
)
from magnetar.ledger.client import LedgerClient
from magnetar.metadata.bookkeeper.ledger_metadata import Versioned
from magnetar.metadata.bookkeeper.proto_strings import checked
from magnetar.metadata.compare_and_set import delete_until_known, try_until_known
from magnetar.metadata.store import MetadataStore
from magnetar.runtime.backoff import Backoff
from magnetar.runtime.runtime import Entropy
from magnetar.runtime.uncancelled import UncancelledTasks
from magnetar.topic.chain import LedgerChain, LedgerSpan
from magnetar.topic.log.tail_cache import TailCache
from magnetar.topic.position import Position
from magnetar.topic.proto.managed_ledger_pb2 import CompressionType, InfoMetadata, ManagedLedgerInfo
from magnetar.wire.compression import Compression, decompress

log = logging.getLogger(__name__)

INFO_BYTES_MAX: Final = 64 * 2**20
"""The limit of an unpacked value: a topic with a million ledgers is below it."""
INDEX_PROPERTY: Final = "index"
"""The topic's property with the index of its last message when the node was last written, as Pulsar keeps it."""

_COMPRESSED_MAGIC: Final = 0x4778
_COMPRESSED_HEAD = struct.Struct(">Hi")

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class LogContext:
    """Is shared by all topics of a broker; a log owns none of it."""

    client: LedgerClient
    store: MetadataStore
    entropy: Entropy
    tail_cache: TailCache


@dataclass(frozen=True, slots=True)
class ManagedLedger:
    spans: tuple[LedgerSpan, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    terminated: Position | None = None
    """The last entry of a terminated topic."""
    kept: bytes = field(default=b"", repr=False)
    """The whole as it was read, which preserves unknown fields."""


def decode_managed_ledger(value: bytes) -> ManagedLedger:
    message = parse_message(unpacked(value), ManagedLedgerInfo, "a topic's node")
    terminated = None
    if message.HasField("terminated_position"):
        terminated = Position(message.terminated_position.ledger_id, message.terminated_position.entry_id)
    return ManagedLedger(
        spans=tuple(sorted((_span(ledger) for ledger in message.ledger_info), key=lambda span: span.ledger_id)),
        properties=_properties(message),
        terminated=terminated,
        kept=message.SerializeToString(),
    )


def encode_managed_ledger(managed_ledger: ManagedLedger) -> bytes:
    message = ManagedLedgerInfo.FromString(managed_ledger.kept)
    del message.ledger_info[:]
    del message.properties[:]
    for span in managed_ledger.spans:
        _put_span(span, message.ledger_info.add())
    for key, value in managed_ledger.properties.items():
        message.properties.add(key=key, value=value)
    if managed_ledger.terminated is not None:
        message.terminated_position.ledger_id, message.terminated_position.entry_id = managed_ledger.terminated
    return message.SerializeToString()


def _properties(message: ManagedLedgerInfo) -> dict[str, str]:
    try:
        return {checked(item.key): checked(item.value) for item in message.properties}
    except ValueError as error:
        raise MalformedMetadataError(f"a topic's node has a property that is no text: {error}") from None


def _span(ledger: ManagedLedgerInfo.LedgerInfo) -> LedgerSpan:
    return LedgerSpan(
        ledger_id=ledger.ledger_id,
        entries=ledger.entries,
        size_bytes=ledger.size,
        closed_ms=ledger.timestamp,
        kept=ledger.SerializeToString(),
    )


def _put_span(span: LedgerSpan, ledger: ManagedLedgerInfo.LedgerInfo) -> None:
    if span.kept:
        ledger.MergeFromString(span.kept)
    ledger.ledger_id = span.ledger_id
    ledger.timestamp = span.closed_ms
    if span.closed_ms:  # While it is written, its numbers would be wrong.
        ledger.entries = span.entries
        ledger.size = span.size_bytes


def is_offloaded(span: LedgerSpan) -> bool:
    """Whether the bookies have deleted it."""
    if not span.kept:
        return False
    context = ManagedLedgerInfo.LedgerInfo.FromString(span.kept).offload_context
    return bool(context.complete and context.bookkeeper_deleted)


def unpacked(value: bytes) -> bytes:
    """Returns the value of a topic's or a cursor's node without its compression."""
    if len(value) < _COMPRESSED_HEAD.size:
        return value
    magic, size = _COMPRESSED_HEAD.unpack_from(value)
    if magic != _COMPRESSED_MAGIC:
        return value
    end = _COMPRESSED_HEAD.size + size
    if size < 0 or end > len(value):
        raise MalformedMetadataError(f"a compressed node of {len(value)} bytes has a head of {size}")
    head = parse_message(value[_COMPRESSED_HEAD.size : end], InfoMetadata, "the head of a compressed node")
    if not 0 <= head.uncompressed_size <= INFO_BYTES_MAX:
        raise MalformedMetadataError(f"a compressed node claims {head.uncompressed_size} uncompressed bytes")
    kind = Compression[CompressionType.Name(head.compression_type)]
    try:
        return decompress(kind, value[end:], head.uncompressed_size, INFO_BYTES_MAX)
    except MalformedEntryError as error:
        raise MalformedMetadataError(f"a compressed node cannot be unpacked: {error}") from error


def parse_message(value: bytes, kind: type[M], what: str) -> M:
    try:
        message = kind.FromString(value)
    except (DecodeError, UnicodeDecodeError) as error:
        raise MalformedMetadataError(f"{what} is not what Pulsar writes there: {error}") from None
    if not message.IsInitialized():
        raise MalformedMetadataError(f"{what} is not what Pulsar writes there: a required field is missing")
    return message


MANAGED_LEDGERS_ROOT: Final = "/managed-ledgers"
NO_NODE: Final = -1
"""The version of a node that does not exist yet."""


def managed_ledger_path(name: str) -> str:
    """Returns the path of a topic's node, by the name of its managed ledger."""
    return f"{MANAGED_LEDGERS_ROOT}/{name}"


class ManagedLedgerStore:
    def __init__(self, store: MetadataStore, entropy: Entropy) -> None:
        self._store = store
        self._entropy = entropy

    async def read(self, name: str) -> Versioned[ManagedLedger] | None:
        node = await self._store.get(managed_ledger_path(name))
        return None if node is None else Versioned(decode_managed_ledger(node.value), node.version)

    async def write(self, name: str, managed_ledger: ManagedLedger, version: int) -> int:
        """Replaces the value with this version, or makes the node for NO_NODE; returns the new version.

        Raises BadVersionError if another broker wrote or deleted it.
        """
        path, value = managed_ledger_path(name), encode_managed_ledger(managed_ledger)

        async def attempt(must_look: bool) -> int:
            if must_look and (done := await self._find_own(path, value, version)) is not None:
                return done
            return await self._write(path, value, version)

        def on_retry(failure: MetadataError) -> None:
            log.info("the write of a topic's metadata is tried again", extra={"topic": name, "why": str(failure)})

        return await try_until_known(attempt, Backoff(self._entropy.random), on_retry=on_retry)

    async def _write(self, path: str, value: bytes, version: int) -> int:
        try:
            if version != NO_NODE:
                return await self._store.put(path, value, version)
            await self._store.create(path, value, make_parents=True)
        except (NodeExistsError, NoNodeError) as error:
            raise BadVersionError(f"another broker created or deleted {path}: {error}") from error
        return 0

    async def _find_own(self, path: str, value: bytes, version: int) -> int | None:
        """Returns the version that our own earlier try has made; None if it was not done."""
        await self._store.sync()  # Otherwise the read might return a state from before the write.
        node = await self._store.get(path)
        if (NO_NODE if node is None else node.version) == version:
            return None
        if node is not None and node.version == version + 1 and node.value == value:
            return node.version  # No other client writes the same: each owner names a ledger of its own.
        raise BadVersionError(f"another broker wrote {path}")

    async def delete(self, name: str, version: int) -> None:
        """Deletes the node. Raises NotEmptyError while it has cursors; a missing node is no error."""
        await delete_until_known(self._store, managed_ledger_path(name), version)


T = TypeVar("T")


class OwnedNode:
    def __init__(self, name: str, store: ManagedLedgerStore, managed_ledger: ManagedLedger, version: int) -> None:
        self.name = name
        self.chain = LedgerChain(managed_ledger.spans)
        """The chain in the node, with the entries that were confirmed since."""
        self.properties: dict[str, str] = dict(managed_ledger.properties)
        self.terminated = managed_ledger.terminated
        self.next_index = 0
        """The index after the last confirmed message."""
        self.is_new = version == NO_NODE
        """Whether this owner is the first, and makes the node."""
        self._store = store
        self._kept = managed_ledger.kept
        self._version = version
        self._turn = asyncio.Lock()
        """Is held by the change in progress, until it is written and known here."""
        self._changes = UncancelledTasks(self._not_changed)
        self._is_settled = False

    @classmethod
    async def open(cls, name: str, context: LogContext, *, create: bool) -> Self:
        """Reads the node and recovers the last ledger, without writing. Raises TopicNotFoundError without `create`."""
        store = ManagedLedgerStore(context.store, context.entropy)
        stored = await store.read(name)
        if stored is None:
            if not create:
                raise TopicNotFoundError(
                    f"topic {name} does not exist: create it first, or allow topics to be created by their first use"
                )
            return cls(name, store, ManagedLedger(), NO_NODE)
        spans = await _with_last_recovered(name, stored.value.spans, context)
        return cls(name, store, replace(stored.value, spans=spans), stored.version)

    async def change(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs this work when its turn comes. Raises TopicFencedError once the node is settled.

        A caller that is cancelled before that has changed nothing; later, the work continues without the caller.
        """
        try:
            await self._turn.acquire()
        except BaseException:
            work.close()
            raise
        if self._is_settled:
            self._turn.release()
            work.close()
            raise self._not_changed()
        task = self._changes.begin(work, name=f"topic-node {self.name}")
        task.add_done_callback(lambda _: self._turn.release())
        return await self._changes.result_of(task)

    async def settle(self, timeout_s: float) -> None:
        """Ends all changes: what is in progress may take this long, and is then cancelled."""
        self._is_settled = True
        await self._changes.wait(timeout_s)
        await self._changes.give_up()

    def _not_changed(self) -> TopicFencedError:
        return TopicFencedError(f"topic {self.name} is not served here any more: look it up again")

    async def write(
        self,
        spans: Sequence[LedgerSpan],
        *,
        terminated: Position | None = None,
        properties: dict[str, str] | None = None,
    ) -> None:
        """Stores this in place of what this owner stored before.

        It is for work that `change` runs, and which changes the chain afterwards.
        """
        wanted = dict(self.properties if properties is None else properties)
        wanted[INDEX_PROPERTY] = str(self.next_index - 1)
        end = terminated or self.terminated
        managed_ledger = ManagedLedger(tuple(spans), wanted, end, self._kept)
        try:
            self._version = await self._store.write(self.name, managed_ledger, self._version)
        except BadVersionError as error:
            raise taken_over(self.name) from error
        self.properties = wanted
        self.terminated = end

    async def check_owner(self) -> None:
        """Raises TopicFencedError if another broker has written the node since this owner did. The answer may be
        outdated at any time."""
        await self.change(self._check_version())

    async def _check_version(self) -> None:
        stored = await self._store.read(self.name)
        if stored is None or stored.version != self._version:
            raise taken_over(self.name)

    async def may_name(self, ledger_id: int) -> bool:
        """Whether the node as it is now names this ledger; True if that cannot be found out."""
        try:
            stored = await self._store.read(self.name)
        except MetadataError:
            return True
        return stored is not None and any(span.ledger_id == ledger_id for span in stored.value.spans)

    async def delete(self) -> None:
        try:
            await self._store.delete(self.name, self._version)
        except BadVersionError as error:
            raise taken_over(self.name) from error


def taken_over(name: str) -> TopicFencedError:
    return TopicFencedError(f"another broker took topic {name} over: look it up again")


async def _with_last_recovered(name: str, spans: tuple[LedgerSpan, ...], context: LogContext) -> tuple[LedgerSpan, ...]:
    if not spans or is_offloaded(spans[-1]):
        return spans
    *others, last = spans
    try:
        metadata = await context.client.recover(last.ledger_id)
    except NoSuchLedgerError:  # Deleted when it was found empty, by a broker that went down before it wrote the node.
        log.warning(
            "the last ledger of a topic does not exist any more", extra={"topic": name, "ledger_id": last.ledger_id}
        )
        return tuple(others)
    closed_ms = last.closed_ms or context.entropy.wall_ms()
    return (*others, replace(last, entries=metadata.last_entry_id + 1, size_bytes=metadata.length, closed_ms=closed_ms))
