"""What auto-recovery keeps in the metadata beside its marks: switches, times of checks, votes, and notes of our own.

Format:    below underreplication, as Apache has them:
           disable                   exists while auto-recovery is switched off for the whole cluster
           lostBookieRecoveryDelay   seconds in decimal digits. Writing the same value again asks for an audit at once.
           checkallledgersctime, placementpolicycheckctime, replicascheckctime: when each check last ended, binary
           auditorelection           votes V_%010d, ephemeral; the lowest number is the auditor. Values name the voter.
           and below underreplication/magnetar, which Apache's nodes do not look at, all of it JSON:
           ledgers/hhhh/…/urL%010d   why a ledger is marked, and what its worker does (`MarkNote`)
           draining/ID               a bookie that is being decommissioned
           lost/ID                   a bookie whose loss was audited; deleted when it comes back
           auditor                   what the auditor does or waits for, as it last said
Invariant: a note is for people, and for deciding when to try again. A mark without a note is repaired like any other.
Read next: underreplication.py
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum, StrEnum
from typing import Any, Final

from google.protobuf import text_format
from google.protobuf.message import DecodeError

from magnetar.errors import BadVersionError, MalformedMetadataError, MetadataError, NodeExistsError, NoNodeError
from magnetar.ids import BookieId, LedgerId
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths, stored_bookie_id
from magnetar.metadata.bookkeeper.proto.underreplication_pb2 import (
    AuditorVoteFormat,
    CheckAllLedgersFormat,
    PlacementPolicyCheckFormat,
    ReplicasCheckFormat,
)
from magnetar.metadata.bookkeeper.proto_strings import parse_text
from magnetar.metadata.bookkeeper.underreplication import delete_empty_parents, path_of_ledger
from magnetar.metadata.paths import join
from magnetar.metadata.store import MetadataStore, Node

REASONS_MAX: Final = 20  # A mark has one for each bookie, and few ledgers have more bookies than this.
_TRIES_MAX: Final = 5
_DELAY_MAX_S: Final = 2**31 - 1


class RecoveryPaths:
    """The nodes of one cluster's auto-recovery, besides marks and locks."""

    def __init__(self, paths: BookKeeperPaths) -> None:
        root = paths.underreplication
        self.root = root
        self.disable = join(root, "disable")
        self.delay = join(root, "lostBookieRecoveryDelay")
        self.election = join(root, "auditorelection")
        self.own = join(root, "magnetar")
        self.notes = join(self.own, "ledgers")
        self.draining = join(self.own, "draining")
        self.lost = join(self.own, "lost")
        self.auditor = join(self.own, "auditor")

    def note(self, ledger_id: LedgerId) -> str:
        return path_of_ledger(self.notes, ledger_id)


class PeriodicCheck(Enum):
    """A check that the auditor repeats: the name of the node with its time, the message in it, and its field."""

    ALL_LEDGERS = ("checkallledgersctime", CheckAllLedgersFormat, "checkAllLedgersCTime")
    PLACEMENT = ("placementpolicycheckctime", PlacementPolicyCheckFormat, "placementPolicyCheckCTime")
    REPLICAS = ("replicascheckctime", ReplicasCheckFormat, "replicasCheckCTime")

    def path(self, paths: RecoveryPaths) -> str:
        return join(paths.root, self.value[0])

    def encode(self, ended_ms: int) -> bytes:
        value: bytes = self.value[1](**{self.value[2]: ended_ms}).SerializeToString()
        return value

    def decode(self, value: bytes) -> int | None:
        """Returns None for a value that no node of BookKeeper wrote: the check is then due."""
        message = self.value[1]()
        try:
            message.ParseFromString(value)
        except DecodeError:
            return None
        return int(getattr(message, self.value[2])) if message.HasField(self.value[2]) else None


def encode_vote(voter: str) -> bytes:
    return text_format.MessageToString(AuditorVoteFormat(bookieId=voter)).encode()


def decode_vote(value: bytes) -> str:
    """Returns the voter; empty if the value names none."""
    message = AuditorVoteFormat()
    try:
        parse_text(value.decode("utf-8", "replace"), message)
    except MalformedMetadataError:
        return ""
    return message.bookieId


def vote_number(name: str) -> int | None:
    """Returns the number of a vote by the name of its node; None for any other node."""
    prefix, _, digits = name.partition("_")
    return int(digits) if prefix == "V" and digits.isdecimal() else None


def encode_delay(seconds: int) -> bytes:
    return str(seconds).encode()


def decode_delay(value: bytes) -> int:
    """Raises MalformedMetadataError."""
    text = value.decode("utf-8", "replace").strip()
    if not text.isdecimal() or int(text) > _DELAY_MAX_S:
        raise MalformedMetadataError(f"lostBookieRecoveryDelay is {text[:40]!r}, which is no number of seconds")
    return int(text)


# --- notes ------------------------------------------------------------------------------------------------------------


class MarkState(StrEnum):
    PENDING = "pending"
    """No worker has tried yet, or the last try failed and will be repeated."""
    REPAIRING = "repairing"
    WAITING = "waiting"
    """For something that passes: a grace time, a bookie that does not answer, more bookies."""
    UNREPAIRABLE = "unrepairable"
    """Entries are on none of the bookies that answer. It is tried again when a bookie of the ledger comes back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkNote:
    """Why a ledger is marked, and how its repair is going."""

    reasons: Mapping[str, str] = field(default_factory=dict)
    """Bookie → why its copies are missing or of no use."""
    marked_ms: int = 0
    """When it was first marked."""
    state: MarkState = MarkState.PENDING
    why: str = ""
    """What it waits for, or why it cannot be repaired."""
    since_ms: int = 0
    """When the state began."""
    entries: str = ""
    """The entries that are lost, such as `3-7,12`."""
    bookies: Mapping[str, int] = field(default_factory=dict)
    """The ledger's bookies when it was found unrepairable: when each had registered, by the clock of the metadata
    store, or 0. Another number means that the bookie came back."""
    mark_version: int = -1
    """The version of the mark when the ledger was found unrepairable."""
    worker: str = ""
    copied_entries: int = 0
    copied_bytes: int = 0
    entries_to_copy: int = 0
    seconds: float = 0.0
    """How long the copying took so far."""
    tries: int = 0

    def encode(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def decode(cls, value: bytes) -> MarkNote:
        """Returns an empty note for a value that cannot be read: it is only for people."""
        try:
            document = json.loads(value)
            known = {name: document[name] for name in cls.__dataclass_fields__ if name in document}
            known["reasons"] = {str(bookie): str(why) for bookie, why in known.get("reasons", {}).items()}
            known["bookies"] = {str(bookie): int(at) for bookie, at in known.get("bookies", {}).items()}
            return cls(**known | {"state": MarkState(known.get("state", MarkState.PENDING))})
        except (ValueError, TypeError, AttributeError):
            return cls()

    def with_reasons(self, reasons: Mapping[BookieId, str], now_ms: int) -> MarkNote:
        """Returns the note with these reasons as well. What is known of a bookie already is not overwritten."""
        merged = dict([*self.reasons.items(), *(item for item in reasons.items() if item[0] not in self.reasons)])
        kept = dict(list(merged.items())[:REASONS_MAX])
        return replace(self, reasons=kept, marked_ms=self.marked_ms or now_ms, since_ms=self.since_ms or now_ms)


class RecoveryNotes:
    """Reads and changes notes. A note is worth a few tries, and no failure of the work that it describes."""

    def __init__(self, store: MetadataStore, paths: RecoveryPaths) -> None:
        self._store = store
        self._paths = paths

    async def read(self, ledger_id: LedgerId) -> MarkNote | None:
        node = await self._store.get(self._paths.note(ledger_id))
        return None if node is None else MarkNote.decode(node.value)

    async def change(self, ledger_id: LedgerId, change: Callable[[MarkNote], MarkNote]) -> None:
        """Stores what `change` makes of the note; of an empty one if none exists."""
        path = self._paths.note(ledger_id)
        for _ in range(_TRIES_MAX):
            try:
                await self._try_change(path, change)
            except (BadVersionError, NodeExistsError, NoNodeError):
                continue
            return

    async def _try_change(self, path: str, change: Callable[[MarkNote], MarkNote]) -> None:
        node = await self._store.get(path)
        if node is None:
            await self._store.create(path, change(MarkNote()).encode(), make_parents=True)
        else:
            await self._store.put(path, change(MarkNote.decode(node.value)).encode(), node.version)

    async def delete(self, ledger_id: LedgerId) -> None:
        path = self._paths.note(ledger_id)
        try:
            await self._store.delete(path)
        except NoNodeError:
            return
        await delete_empty_parents(self._store, path, self._paths.notes)


# --- bookies ----------------------------------------------------------------------------------------------------------


class BookieSet:
    """A set of bookies in the metadata: one node for each, below one path."""

    def __init__(self, store: MetadataStore, path: str) -> None:
        self._store = store
        self.path = path

    async def read(self) -> list[BookieId]:
        try:
            return bookies_in(await self._store.children(self.path))
        except NoNodeError:
            return []

    async def get(self, bookie: BookieId) -> Node | None:
        return await self._store.get(join(self.path, bookie))

    async def add(self, bookie: BookieId, now_ms: int, **more: Any) -> bool:
        """Reports whether it was new."""
        value = json.dumps({"since_ms": now_ms, **more}, separators=(",", ":")).encode()
        try:
            await self._store.create(join(self.path, bookie), value, make_parents=True)
        except NodeExistsError:
            return False
        return True

    async def discard(self, bookie: BookieId) -> bool:
        """Reports whether it existed."""
        try:
            await self._store.delete(join(self.path, bookie))
        except NoNodeError:
            return False
        return True


def bookies_in(names: list[str]) -> list[BookieId]:
    """Returns the names that are bookie ids; `readonly` is not one."""
    found = []
    for name in names:
        try:
            found.append(stored_bookie_id(name))
        except ValueError:
            continue
    return found


async def is_disabled(store: MetadataStore, paths: RecoveryPaths) -> bool:
    return await store.get(paths.disable) is not None


async def set_disabled(store: MetadataStore, paths: RecoveryPaths, disabled: bool) -> bool:
    """Reports whether that was a change."""
    try:
        if disabled:
            await store.create(paths.disable, b"", make_parents=True)
        else:
            await store.delete(paths.disable)
    except (NodeExistsError, NoNodeError):
        return False
    return True


async def request_audit(store: MetadataStore, paths: RecoveryPaths, default_delay_s: int) -> None:
    """Asks the auditor, ours or Apache's, to look for lost bookies now, by writing the delay as it is again."""
    node = await store.get(paths.delay)
    if node is None:
        await store.create(paths.delay, encode_delay(default_delay_s), make_parents=True)
        node = await store.get(paths.delay)
    if node is None:
        raise MetadataError(f"{paths.delay} is deleted repeatedly: try again")
    await store.put(paths.delay, node.value)


async def elected_auditor(store: MetadataStore, paths: RecoveryPaths) -> str | None:
    """Returns what the lowest vote says of its voter; None if there is no vote."""
    try:
        names = await store.children(paths.election)
    except NoNodeError:
        return None
    votes = sorted((number, name) for name in names if (number := vote_number(name)) is not None)
    for _, name in votes:
        node = await store.get(join(paths.election, name))
        if node is not None:
            return decode_vote(node.value)
    return None
