"""Ledger metadata: a ledger's state, its quorums, and which bookies hold which entries.

Invariant: 1 ≤ ack quorum ≤ write quorum ≤ ensemble size; the first fragment begins at entry 0, the others at
           rising entries; every ensemble has the ensemble's size; last entry and length are those of a closed ledger
           and otherwise -1 and 0; digest type and password are both known or both not (the oldest releases stored
           neither).
Format:    a ledger keeps the format version it was created in (`format_version`); new ones get version 3.
Read next: ledger_codec.py
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from magnetar.ids import LEDGER_ID_MAX, BookieId, EntryId, LedgerId
from magnetar.wire.bookkeeper.digests import DigestType

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Versioned(Generic[T]):
    value: T
    version: int


NO_ENTRY: Final = EntryId(-1)
"""The last entry of an empty ledger, or of one whose last entry is not known yet."""
UNKNOWN_TIME: Final = -1
NO_TOKEN: Final = 0
INT64_MAX: Final = 2**63 - 1


class LedgerState(enum.Enum):
    """The state of a ledger; the numbers are those of the stored form."""

    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


class FormatVersion(enum.IntEnum):
    TEXT = 1
    """Lines of text; has no password, digest type, ack quorum, custom metadata, creation time or token."""
    TEXT_PROTOBUF = 2
    """Has no token."""
    BINARY_PROTOBUF = 3


@dataclass(frozen=True, slots=True)
class Fragment:
    """The bookies of the entries from this one to the beginning of the next fragment."""

    first_entry_id: EntryId
    ensemble: tuple[BookieId, ...]
    unknown_fields: bytes = field(default=b"", repr=False)
    """Unknown fields that a newer writer stored, kept for the next write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerMetadata:
    ledger_id: LedgerId
    """The id from the path; it is not part of the stored value."""
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    fragments: tuple[Fragment, ...]
    state: LedgerState = LedgerState.OPEN
    last_entry_id: EntryId = NO_ENTRY
    length: int = 0
    digest_type: DigestType | None = None
    password: bytes | None = field(default=None, repr=False)
    ctime_ms: int = UNKNOWN_TIME
    stores_ctime: bool = False
    """Whether the creation time is part of the value; otherwise it is the node's own."""
    custom_metadata: Mapping[str, bytes] = field(default_factory=dict)
    c_token: int = NO_TOKEN
    format_version: FormatVersion = FormatVersion.BINARY_PROTOBUF
    unknown_fields: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        _check_numbers(self)
        _check_fragments(self)
        _check_end(self)
        if (self.digest_type is None) != (self.password is None):
            raise ValueError("digest type and password are stored together or not at all")

    @property
    def is_closed(self) -> bool:
        return self.state is LedgerState.CLOSED

    def fragment_of(self, entry_id: EntryId) -> Fragment:
        """Returns the fragment that holds, or will hold, the entry."""
        assert entry_id >= 0, entry_id
        return self.fragments[bisect_right(self.fragments, entry_id, key=lambda f: f.first_entry_id) - 1]


def _check_numbers(m: LedgerMetadata) -> None:
    if not 0 <= m.ledger_id <= LEDGER_ID_MAX:
        raise ValueError(f"ledger id {m.ledger_id} is out of range")
    if not 1 <= m.ack_quorum <= m.write_quorum <= m.ensemble_size:
        raise ValueError(
            f"quorums do not fit: ack quorum {m.ack_quorum}, write quorum {m.write_quorum}, ensemble {m.ensemble_size}"
            " (1 ≤ ack ≤ write ≤ ensemble)"
        )
    if not UNKNOWN_TIME <= m.ctime_ms <= INT64_MAX:
        raise ValueError(f"creation time {m.ctime_ms} is out of range")


def _check_fragments(m: LedgerMetadata) -> None:
    if not m.fragments or m.fragments[0].first_entry_id != 0:
        raise ValueError("the first fragment does not begin at entry 0")
    last = -1
    for fragment in m.fragments:
        if not last < fragment.first_entry_id <= INT64_MAX:
            raise ValueError(f"a fragment at entry {fragment.first_entry_id} follows one at {last}")
        last = fragment.first_entry_id
        if len(fragment.ensemble) != m.ensemble_size:
            raise ValueError(
                f"the fragment at entry {last} has {len(fragment.ensemble)} bookies;"
                f" the ensemble size is {m.ensemble_size}"
            )


def _check_end(m: LedgerMetadata) -> None:
    if m.is_closed:
        if not (NO_ENTRY <= m.last_entry_id <= INT64_MAX and 0 <= m.length <= INT64_MAX):
            raise ValueError(f"a closed ledger has last entry {m.last_entry_id} and length {m.length}")
    elif m.last_entry_id != NO_ENTRY or m.length != 0:
        raise ValueError("only a closed ledger has a last entry and a length")
