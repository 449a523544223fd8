"""A ledger's metadata: the keys in it, and its changes, from the creation over replaced bookies to the close.

The digest of `LedgerKeys` is the ledger's own. The caller's choice counts only for metadata without one. All but the
oldest releases store the password in the metadata, so a wrong one is found here, before a bookie is asked. That
matters: a bookie that never saw the ledger accepts the first key that it receives.

Order:     `compare_and_set` changes metadata although others may change it too, and although answers get lost: decide
           what to make of what is stored → write it at the version that was read → after a lost race or an unknown
           outcome, read again and decide again. The decision must therefore recognise its own work, and return None if
           nothing is left to do.
Limits:    A number of tries, with pauses; then the last error, which says whether the outcome is unknown.

When bookies of the last ensemble are replaced, entries after the last confirmed one move to the new ensemble, so a new
fragment begins right after that entry. If the last fragment begins there too, it has no confirmed entry and is replaced
in place. After a lost race a writer reads again:

    not open any more                → another client recovers the ledger: this writer is fenced
    our fragment exists already      → an earlier try succeeded, and its answer got lost
    another bookie in an older one   → a repair: ours is put on top of it, and tried again
    the last fragment is another     → only a writer may do that: the ledger was taken over

Recovery makes its changes in memory only; its closing compare-and-set commits them together with the end.

A new ledger gets its id from the cluster's generator or from the caller; then an id that is taken is an error. The
placement rules choose the bookies among those registered as writable. A bookie learns of the ledger with its first
entry. A ledger ends with the last entry that its writer confirmed. No later entry was acknowledged, and none will be:
the writer gave its window up before. Closing may meet another client's change:

    closed already at the same end           → an earlier try of ours, or a recovery that found the same
    closed at another end                    → taken over; what the other client found is the truth
    open or in recovery, with any ensembles  → closed on top of it. That is safe during a recovery too: it has
                                               published nothing yet, and will find the ledger closed.

Format:    Metadata of version 3, with creation time, digest type and password, as Apache's clients store them. A random
           token distinguishes our own create from another client's if the connection was lost meanwhile.
Read next: metadata/compare_and_set.py, ledger/writing/repair.py
"""

from __future__ import annotations

import enum
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from magnetar.errors import BadVersionError, LedgerExistsError, LedgerFencedError, MetadataError, WrongPasswordError
from magnetar.ids import BookieId, EntryId, LedgerId, ledger_id
from magnetar.metadata.bookkeeper.id_generator import LedgerIdGenerator
from magnetar.metadata.bookkeeper.ledger_metadata import Fragment, LedgerMetadata, LedgerState, Versioned
from magnetar.metadata.bookkeeper.ledgers import LedgerMetadataStore
from magnetar.metadata.compare_and_set import TRIES_MAX, try_until_known
from magnetar.metadata.store import MetadataStore
from magnetar.quorum.candidates import Candidates
from magnetar.quorum.placement import PlacementPolicy
from magnetar.quorum.sizes import QuorumSizes
from magnetar.runtime.backoff import Backoff
from magnetar.runtime.runtime import Entropy
from magnetar.wire.bookkeeper.digests import DigestType, EntryDigest, entry_digest, master_key


@dataclass(frozen=True, slots=True)
class LedgerKeys:
    ledger_id: LedgerId
    digest: EntryDigest
    master_key: bytes = field(repr=False)


def ledger_keys(metadata: LedgerMetadata, password: bytes, default_digest: DigestType) -> LedgerKeys:
    """Raises WrongPasswordError if the metadata has another password."""
    if metadata.password is not None and metadata.password != password:
        raise wrong_password(metadata.ledger_id)
    digest = entry_digest(metadata.digest_type or default_digest, password)
    return LedgerKeys(metadata.ledger_id, digest, master_key(password))


def stored_keys(metadata: LedgerMetadata) -> LedgerKeys | None:
    """Returns the keys of the password in the metadata. None for ledgers of the oldest releases, which store none."""
    if metadata.password is None or metadata.digest_type is None:
        return None
    return ledger_keys(metadata, metadata.password, metadata.digest_type)


def wrong_password(ledger_id: int) -> WrongPasswordError:
    return WrongPasswordError(
        f"ledger {ledger_id} was created with another password: give the one that its writer used"
    )


log = logging.getLogger(__name__)


class MetadataContext(NamedTuple):
    ledgers: LedgerMetadataStore
    store: MetadataStore
    entropy: Entropy


async def compare_and_set(
    known: Versioned[LedgerMetadata],
    decide: Callable[[LedgerMetadata], LedgerMetadata | None],
    context: MetadataContext,
) -> Versioned[LedgerMetadata]:
    """Returns what is stored in the end.

    `decide` returns what to store in place of its argument, or None to leave it; it raises to give up.
    """

    async def attempt(must_look: bool) -> Versioned[LedgerMetadata]:
        nonlocal known
        if must_look:
            await context.store.sync()  # A server that lags must not report what was true before.
            known = await context.ledgers.read(known.value.ledger_id)
        wanted = decide(known.value)
        return known if wanted is None else await context.ledgers.update(wanted, known.version)

    def on_retry(failure: MetadataError) -> None:
        log.info(
            "the change of a ledger's metadata is tried again",
            extra={"ledger_id": known.value.ledger_id, "why": str(failure)},
        )

    backoff = Backoff(context.entropy.random)
    return await try_until_known(attempt, backoff, TRIES_MAX, lost_race=BadVersionError, on_retry=on_retry)


def changed(metadata: LedgerMetadata, first_entry_id: int, ensemble: Sequence[BookieId]) -> LedgerMetadata:
    """Returns the metadata with this ensemble from this entry on."""
    last = metadata.fragments[-1]
    assert last.first_entry_id <= first_entry_id, "a confirmed entry cannot be moved"
    in_place = last.first_entry_id == first_entry_id
    before = metadata.fragments[:-1] if in_place else metadata.fragments
    new = Fragment(EntryId(first_entry_id), tuple(ensemble), last.unknown_fields if in_place else b"")
    return replace(metadata, fragments=(*before, new))


class Conflict(enum.Enum):
    """What it means that the metadata differs from what this client knew."""

    FENCED = "fenced"
    DONE = "done"
    MERGE = "merge"


def resolve(known: LedgerMetadata, wanted: LedgerMetadata, found: LedgerMetadata) -> Conflict:
    """Compares: `wanted` was to replace `known`, and `found` is what is stored."""
    if found.state is not LedgerState.OPEN:
        return Conflict.FENCED
    if is_same_fragment(found.fragments[-1], wanted.fragments[-1]):
        return Conflict.DONE
    return Conflict.MERGE if is_same_fragment(found.fragments[-1], known.fragments[-1]) else Conflict.FENCED


def is_same_fragment(one: Fragment, other: Fragment) -> bool:
    return one.first_entry_id == other.first_entry_id and one.ensemble == other.ensemble


class EnsembleChange(ABC):
    """Lets a write engine replace bookies that fail: the engine chooses them, and this object commits the change."""

    @property
    @abstractmethod
    def metadata(self) -> LedgerMetadata:
        """The metadata as last known."""

    @property
    def ensemble(self) -> tuple[BookieId, ...]:
        return self.metadata.fragments[-1].ensemble

    @abstractmethod
    async def write(self, first_entry_id: int, replacements: Mapping[int, BookieId]) -> None:
        """Puts other bookies at these positions, from this entry on.

        When it returns, the change is committed; when it raises, the writer is finished.
        """

    def _with(self, replacements: Mapping[int, BookieId]) -> tuple[BookieId, ...]:
        return tuple(replacements.get(position, bookie) for position, bookie in enumerate(self.ensemble))


class ChangeInMemory(EnsembleChange):
    """Keeps recovery's changes: they become visible when the ledger is closed."""

    def __init__(self, metadata: LedgerMetadata) -> None:
        self._metadata = metadata

    @property
    def metadata(self) -> LedgerMetadata:
        return self._metadata

    async def write(self, first_entry_id: int, replacements: Mapping[int, BookieId]) -> None:
        self._metadata = changed(self._metadata, first_entry_id, self._with(replacements))


class CommittedChange(EnsembleChange):
    """Keeps a writer's changes: they are in the metadata before any entry relies on them."""

    def __init__(self, versioned: Versioned[LedgerMetadata], context: MetadataContext) -> None:
        self.versioned = versioned
        self._context = context

    @property
    def metadata(self) -> LedgerMetadata:
        return self.versioned.value

    async def write(self, first_entry_id: int, replacements: Mapping[int, BookieId]) -> None:
        known = self.metadata
        ensemble = self._with(replacements)
        wanted = changed(known, first_entry_id, ensemble)

        def decide(found: LedgerMetadata) -> LedgerMetadata | None:
            match resolve(known, wanted, found):
                case Conflict.FENCED:
                    raise taken_over(found)
                case Conflict.DONE:
                    return None
                case Conflict.MERGE:
                    return changed(found, first_entry_id, ensemble)

        self.versioned = await compare_and_set(self.versioned, decide, self._context)


def taken_over(found: LedgerMetadata) -> LedgerFencedError:
    """Returns the error of a writer whose ledger another client has taken over."""
    how = {
        LedgerState.OPEN: "another client changed its last fragment",
        LedgerState.IN_RECOVERY: "another client is recovering it",
        LedgerState.CLOSED: f"another client closed it after entry {found.last_entry_id}",
    }[found.state]
    return LedgerFencedError(
        f"ledger {found.ledger_id} was taken over: {how}; this writer is finished, open the ledger to see what it holds"
    )


_ID_TRIES_MAX = 3  # An id of the generator is taken only if a caller chose it before, which is rare.


@dataclass(frozen=True, slots=True, kw_only=True)
class NewLedger:
    """What a caller may choose, for the ledger's whole life."""

    sizes: QuorumSizes
    ledger_id: int | None = None
    """None stands for the cluster's next id."""
    digest_type: DigestType = DigestType.CRC32C
    password: bytes = field(default=b"", repr=False)
    custom_metadata: Mapping[str, bytes] = field(default_factory=dict)


async def create_ledger(
    new: NewLedger, candidates: Candidates, placement: PlacementPolicy, ids: LedgerIdGenerator, context: MetadataContext
) -> Versioned[LedgerMetadata]:
    """Raises NotEnoughBookiesError before anything is stored; LedgerExistsError if the caller's id is taken."""
    ensemble = placement.new_ensemble(new.sizes, candidates).ensemble
    metadata = LedgerMetadata(
        ledger_id=LedgerId(0) if new.ledger_id is None else ledger_id(new.ledger_id),
        ensemble_size=new.sizes.ensemble,
        write_quorum=new.sizes.write,
        ack_quorum=new.sizes.ack,
        fragments=(Fragment(EntryId(0), ensemble),),
        digest_type=new.digest_type,
        password=new.password,
        ctime_ms=context.entropy.wall_ms(),
        stores_ctime=True,
        custom_metadata=dict(new.custom_metadata),
    )
    if new.ledger_id is not None:
        return await context.ledgers.create(metadata)
    return await _create_next(metadata, ids, context)


async def _create_next(
    metadata: LedgerMetadata, ids: LedgerIdGenerator, context: MetadataContext
) -> Versioned[LedgerMetadata]:
    for tries_left in reversed(range(_ID_TRIES_MAX)):
        try:
            return await context.ledgers.create(replace(metadata, ledger_id=await ids.next_id()))
        except LedgerExistsError:
            if not tries_left:
                raise
    raise AssertionError("the last try returns or raises")


def closed(found: LedgerMetadata, last_entry_id: int, length: int) -> LedgerMetadata | None:
    """Returns the closed ledger's metadata; None if it is closed at this end already. Raises LedgerFencedError if at
    another."""
    if not found.is_closed:
        return replace(found, state=LedgerState.CLOSED, last_entry_id=EntryId(last_entry_id), length=length)
    if (found.last_entry_id, found.length) == (last_entry_id, length):
        return None
    raise taken_over(found)


async def close_ledger(
    known: Versioned[LedgerMetadata], last_entry_id: int, length: int, context: MetadataContext
) -> Versioned[LedgerMetadata]:
    """Closes the ledger. `length` is that of all payloads up to the last entry, which is -1 for an empty ledger."""
    return await compare_and_set(known, lambda found: closed(found, last_entry_id, length), context)
