"""Which ledgers a cluster has, and how far each may be verified.

End:       a closed ledger's last entry. One that is still written is verified as far as its bookies know it confirmed:
           what is behind that may be anywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from magnetar.errors import LacUnknownError, NoSuchLedgerError
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.lac import read_lac
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.spark.pipelines.scrub_plan import ReplicaRange, replica_ranges
from magnetar.spark.pipelines.scrub_reads import keys_of
from magnetar.spark.pipelines.scrub_result import Skipped

_METADATA_AT_ONCE: Final = 64


@dataclass(frozen=True, slots=True)
class Plan:
    ledgers: int
    work: list[tuple[ReplicaRange, LedgerMetadata]]
    skipped: list[Skipped]


async def make_plan(client: LedgerClient, only: Sequence[int] = ()) -> Plan:
    """NoSuchLedgerError if one that was named does not exist."""
    ids = list(only) or [ledger_id async for ledger_id in client.list()]
    gate = asyncio.Semaphore(_METADATA_AT_ONCE)

    async def look(ledger_id: int) -> tuple[LedgerMetadata, int] | Skipped | None:
        async with gate:
            return await _look(client, ledger_id, must_exist=bool(only))

    found = await asyncio.gather(*map(look, ids))
    ledgers = [known for known in found if isinstance(known, tuple)]
    work = [(wanted, metadata) for metadata, last in ledgers for wanted in replica_ranges(metadata, last)]
    return Plan(len(ledgers), work, [known for known in found if isinstance(known, Skipped)])


async def _look(
    client: LedgerClient, ledger_id: int, *, must_exist: bool
) -> tuple[LedgerMetadata, int] | Skipped | None:
    """The ledger and the last entry to verify; None if it was deleted meanwhile."""
    try:
        metadata = await client.metadata(ledger_id)
        if metadata.digest_type is None:
            return Skipped(ledger_id, "its metadata does not say how its entries are sealed: an old release made it")
        last = await read_lac(metadata, keys_of(metadata), client.parts)
    except NoSuchLedgerError:
        if must_exist:
            raise
        return None
    except LacUnknownError as error:
        return Skipped(ledger_id, str(error))
    return metadata, last
