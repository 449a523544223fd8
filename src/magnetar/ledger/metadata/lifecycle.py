"""The two ends of a ledger's metadata: creating a ledger, and closing it as its writer.

The cluster's generator chooses the id, or the caller does; then an id that is taken is an error. The placement rules
choose the bookies among those registered as writable. A bookie learns of the ledger with its first entry.

A ledger ends with the last entry that its writer confirmed. No later entry was acknowledged, and none will be: the
writer gave its window up before. Closing may meet another client's change:

    closed already at the same end           → an earlier try of ours, or a recovery that found the same
    closed at another end                    → taken over; what the other client found is the truth
    open or in recovery, with any ensembles  → closed on top of it. That is safe during a recovery too: it has
                                               published nothing yet, and will find the ledger closed.

Format:    Metadata of version 3, with creation time, digest type and password, as Apache's clients store them. A random
           token distinguishes our own create from another client's if the connection was lost meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from magnetar.errors import LedgerExistsError
from magnetar.ids import EntryId, LedgerId, ledger_id
from magnetar.ledger.metadata.compare_and_set import MetadataContext, compare_and_set
from magnetar.ledger.metadata.ensemble_change import taken_over
from magnetar.metadata.bookkeeper.id_generator import LedgerIdGenerator
from magnetar.metadata.bookkeeper.ledger_metadata import Fragment, LedgerMetadata, LedgerState, Versioned
from magnetar.quorum.candidates import Candidates
from magnetar.quorum.placement import PlacementPolicy
from magnetar.quorum.sizes import QuorumSizes
from magnetar.wire.bookkeeper.digests import DigestType

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
    new: NewLedger,
    candidates: Candidates,
    placement: PlacementPolicy,
    ids: LedgerIdGenerator,
    context: MetadataContext,
) -> Versioned[LedgerMetadata]:
    """Raises NotEnoughBookiesError before anything is stored; LedgerExistsError if the caller's id is taken."""
    ensemble = placement.new_ensemble(new.sizes, candidates, custom=new.custom_metadata).ensemble
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
