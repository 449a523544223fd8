"""A topic's node in the metadata store, as Pulsar keeps it: its ledgers, its properties, and its end if it has one.

Invariant: Every write names the version that it replaces. BadVersionError means that another broker has written: it
           owns the topic now. After a lost connection the node is read again and compared, never guessed.
Format:    /managed-ledgers/{tenant}/{namespace}/persistent/{encoded name} has ManagedLedgerInfo, plain; or 0x4778 u16 |
           size i32 | InfoMetadata | compressed ManagedLedgerInfo, which Pulsar writes if compression is configured.
           Both are read, plain is written. Nodes of cursors use the same compression around another message. An empty
           node is a new topic. Unknown fields, of the whole or of a ledger, are written back as they were read.
Read next: owned_node.py, metadata/compare_and_set.py
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from magnetar.errors import (
    BadVersionError,
    MalformedEntryError,
    MalformedMetadataError,
    MetadataError,
    NodeExistsError,
    NoNodeError,
)
from magnetar.metadata.bookkeeper.ledger_metadata import Versioned
from magnetar.metadata.bookkeeper.proto_strings import checked
from magnetar.metadata.compare_and_set import delete_until_known, try_until_known
from magnetar.metadata.store import MetadataStore
from magnetar.runtime.backoff import Backoff
from magnetar.runtime.runtime import Entropy
from magnetar.topic.chain import LedgerSpan
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


# --- compressed values ------------------------------------------------------------------------------------------------


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


# --- in the metadata store --------------------------------------------------------------------------------------------

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
