"""Creating a ledger: an id, an ensemble of bookies, and its first metadata.

Id:        the cluster's generator gives one out, or the caller brings one; a brought id that is taken is an error.
Bookies:   chosen by the placement rules among those registered as writable. They hear of the ledger with its first
           entry.
Metadata:  format version 3, with creation time, digest type and password, as Apache's clients store them. A random
           token tells our own create from another's when the connection was lost on the way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from magnetar.errors import LedgerExistsError
from magnetar.ids import EntryId, LedgerId, ledger_id
from magnetar.ledger.compare_and_set import MetadataParts
from magnetar.metadata.bookkeeper.id_generator import LedgerIdGenerator
from magnetar.metadata.bookkeeper.ledger_metadata import Fragment, LedgerMetadata
from magnetar.metadata.bookkeeper.versioned import Versioned
from magnetar.quorum.candidates import Candidates
from magnetar.quorum.placement import PlacementPolicy
from magnetar.quorum.sizes import QuorumSizes
from magnetar.wire.bookkeeper.digests import DigestType

_ID_TRIES_MAX = 3  # An id that the generator gave out and that is taken was brought by somebody: rare, so few tries.


@dataclass(frozen=True, slots=True, kw_only=True)
class NewLedger:
    """What a caller may choose. It holds for the ledger's whole life."""

    sizes: QuorumSizes
    ledger_id: int | None = None
    """None: the next one of the cluster."""
    digest_type: DigestType = DigestType.CRC32C
    password: bytes = field(default=b"", repr=False)
    custom_metadata: Mapping[str, bytes] = field(default_factory=dict)


async def create_ledger(
    new: NewLedger,
    candidates: Candidates,
    placement: PlacementPolicy,
    ids: LedgerIdGenerator,
    parts: MetadataParts,
) -> Versioned[LedgerMetadata]:
    """NotEnoughBookiesError before anything is stored; LedgerExistsError for an id that was brought and is taken."""
    ensemble = placement.new_ensemble(new.sizes, candidates, custom=new.custom_metadata).ensemble
    metadata = LedgerMetadata(
        ledger_id=LedgerId(0) if new.ledger_id is None else ledger_id(new.ledger_id),
        ensemble_size=new.sizes.ensemble,
        write_quorum=new.sizes.write,
        ack_quorum=new.sizes.ack,
        fragments=(Fragment(EntryId(0), ensemble),),
        digest_type=new.digest_type,
        password=new.password,
        ctime_ms=parts.entropy.wall_ms(),
        stores_ctime=True,
        custom_metadata=dict(new.custom_metadata),
    )
    if new.ledger_id is not None:
        return await parts.ledgers.create(metadata)
    return await _create_next(metadata, ids, parts)


async def _create_next(
    metadata: LedgerMetadata, ids: LedgerIdGenerator, parts: MetadataParts
) -> Versioned[LedgerMetadata]:
    for tries_left in reversed(range(_ID_TRIES_MAX)):
        try:
            return await parts.ledgers.create(replace(metadata, ledger_id=await ids.next_id()))
        except LedgerExistsError:
            if not tries_left:
                raise
    raise AssertionError("the last try returns or raises")
