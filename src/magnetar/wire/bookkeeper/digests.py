"""How a writer seals an entry, and how a reader checks that it is unchanged.

Format:    entry: ledger_id i64 | entry_id i64 | LAC i64 | length i64 | digest | payload, all big-endian
           `length` is that of all payloads of the ledger up to and including this one.
           explicit LAC: ledger_id i64 | LAC i64 | digest, sent when there is no entry to carry it
           digest: over everything before it and everything after it. CRC32C 4 bytes; CRC32 8 bytes, the upper four
           zero; HMAC-SHA1 20 bytes; none 0 bytes.
           keys: SHA-1 of a word and the password. "ledger" gives the master key that a bookie compares, whatever the
           digest; "mac" gives the key of the HMAC, so a bookie that knows the first cannot forge entries. An empty
           password is a password like any other.
Invariant: nothing is returned of an entry whose digest, ledger id or entry id is not the one that the reader expects.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import struct
import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Final, NamedTuple

from crc32c import crc32c

from magnetar.errors import DigestMismatchError
from magnetar.wire.bookkeeper.frames import Buffer

METADATA = struct.Struct(">qqqq")
_LAC = struct.Struct(">qq")
_CRC32C = struct.Struct(">I")
_CRC32C_HEAD = struct.Struct(">qqqqI")
_CRC32 = struct.Struct(">Q")
_entry: Final = tuple.__new__  # Half the time of Entry(…), for every entry.


class DigestType(enum.Enum):
    """The digest types, with the numbers of the ledger's metadata."""

    CRC32 = 1
    HMAC = 2
    CRC32C = 3
    DUMMY = 4


class Entry(NamedTuple):
    entry_id: int
    lac: int
    length: int
    payload: memoryview
    """A view of the bytes that were opened, not a copy."""


class EntryDigest(ABC):
    """Seals and opens the entries of any ledger that uses this digest, and, for HMAC, this password."""

    __slots__ = ("overhead_bytes",)
    digest_bytes: ClassVar[int]
    overhead_bytes: Final[int]
    """The bytes of an entry besides its payload."""

    def __init__(self) -> None:
        self.overhead_bytes = METADATA.size + self.digest_bytes

    @abstractmethod
    def digest(self, head: Buffer, payload: Buffer) -> bytes:
        """Returns the digest of both parts together."""

    def seal(self, ledger_id: int, entry_id: int, lac: int, length: int, payload: Buffer) -> bytes:
        """Returns the header, which goes before the payload."""
        metadata = METADATA.pack(ledger_id, entry_id, lac, length)
        return metadata + self.digest(metadata, payload)

    def open(self, ledger_id: int, entry_id: int, data: Buffer) -> Entry:
        entry = self.open_last(ledger_id, data)
        if entry.entry_id != entry_id:
            raise DigestMismatchError(
                f"asked for entry {entry_id} of ledger {ledger_id} and got entry {entry.entry_id}, intact: "
                "the bookie's index is wrong; read it from another bookie"
            )
        return entry

    def open_last(self, ledger_id: int, data: Buffer) -> Entry:
        """Opens the last entry, whose id is not known before."""
        view = memoryview(data)
        payload = view[self.overhead_bytes :]
        if not self._matches(view, METADATA.size, payload):
            raise _mismatch("an entry", ledger_id, len(view), self.overhead_bytes)
        found_ledger, entry_id, lac, length = METADATA.unpack_from(view)
        if found_ledger != ledger_id:
            raise _other_ledger("an intact entry", found_ledger, ledger_id)
        return Entry(entry_id, lac, length, payload)

    def open_run(self, ledger_id: int, first: int, bodies: Sequence[Buffer]) -> list[Entry]:
        """Opens entries in a row, as one answer has them."""
        return [self.open(ledger_id, entry_id, body) for entry_id, body in enumerate(bodies, first)]

    def seal_lac(self, ledger_id: int, lac: int) -> bytes:
        head = _LAC.pack(ledger_id, lac)
        return head + self.digest(head, b"")

    def open_lac(self, ledger_id: int, data: Buffer) -> int:
        view = memoryview(data)
        if not self._matches(view, _LAC.size, b""):
            raise _mismatch("the explicit LAC", ledger_id, len(view), _LAC.size + self.digest_bytes)
        found_ledger, lac = _LAC.unpack_from(view)
        if found_ledger != ledger_id:
            raise _other_ledger("an intact explicit LAC", found_ledger, ledger_id)
        return int(lac)

    def _matches(self, view: memoryview, head_bytes: int, payload: Buffer) -> bool:
        end = head_bytes + self.digest_bytes
        if len(view) < end:
            return False
        return hmac.compare_digest(self.digest(view[:head_bytes], payload), view[head_bytes:end])


def _mismatch(what: str, ledger_id: int, found_bytes: int, least_bytes: int) -> DigestMismatchError:
    if found_bytes < least_bytes:
        return DigestMismatchError(
            f"{what} of ledger {ledger_id} has {found_bytes} bytes, and its header alone has {least_bytes}"
        )
    return DigestMismatchError(
        f"{what} of ledger {ledger_id} does not match its digest: damaged, or written with another digest type or "
        "password"
    )


def _other_ledger(what: str, found: int, expected: int) -> DigestMismatchError:
    return DigestMismatchError(f"{what} of ledger {found} in place of one of ledger {expected}")


class Crc32cDigest(EntryDigest):
    __slots__ = ()
    digest_bytes = _CRC32C.size

    def digest(self, head: Buffer, payload: Buffer) -> bytes:
        return _CRC32C.pack(crc32c(payload, crc32c(head)))

    def open_run(self, ledger_id: int, first: int, bodies: Sequence[Buffer]) -> list[Entry]:
        """Does the same in about half of the time: readers open thousands of small entries at once."""
        entries = []
        unpack, head_bytes, metadata_bytes = _CRC32C_HEAD.unpack_from, _CRC32C_HEAD.size, METADATA.size
        for entry_id, body in enumerate(bodies, first):
            if len(body) < head_bytes:
                return super().open_run(ledger_id, first, bodies)
            view = memoryview(body)
            found_ledger, found_entry, lac, length, found_digest = unpack(view)
            payload = view[head_bytes:]
            digest = crc32c(payload, crc32c(view[:metadata_bytes]))
            if digest != found_digest or found_ledger != ledger_id or found_entry != entry_id:
                return super().open_run(ledger_id, first, bodies)  # This raises the error with its reason.
            entries.append(_entry(Entry, (entry_id, lac, length, payload)))
        return entries


class Crc32Digest(EntryDigest):
    __slots__ = ()
    digest_bytes = _CRC32.size

    def digest(self, head: Buffer, payload: Buffer) -> bytes:
        return _CRC32.pack(zlib.crc32(payload, zlib.crc32(head)))


class HmacDigest(EntryDigest):
    __slots__ = ("_keyed",)
    digest_bytes = 20

    def __init__(self, password: bytes) -> None:
        super().__init__()
        self._keyed = hmac.new(_key("mac", password), digestmod="sha1")

    def digest(self, head: Buffer, payload: Buffer) -> bytes:
        mac = self._keyed.copy()
        mac.update(head)
        mac.update(payload)
        return mac.digest()


class NoDigest(EntryDigest):
    """Checks only the ids."""

    __slots__ = ()
    digest_bytes = 0

    def digest(self, head: Buffer, payload: Buffer) -> bytes:  # noqa: ARG002 - nothing is computed
        return b""


def entry_digest(kind: DigestType, password: bytes = b"") -> EntryDigest:
    """Returns the digest; only HMAC uses the password."""
    match kind:
        case DigestType.CRC32C:
            return Crc32cDigest()
        case DigestType.CRC32:
            return Crc32Digest()
        case DigestType.HMAC:
            return HmacDigest(password)
        case DigestType.DUMMY:
            return NoDigest()


def master_key(password: bytes) -> bytes:
    """Returns the key that a client sends and the bookie keeps to compare: 20 bytes, also for an empty password."""
    return _key("ledger", password)


def _key(pad: str, password: bytes) -> bytes:
    # SHA-1 is what every bookie and client of BookKeeper computes; another hash would be another protocol.
    return hashlib.sha1(pad.encode() + password, usedforsecurity=False).digest()
