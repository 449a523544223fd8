"""The last entry that is known to be committed (LAC), from enough bookies to be sure that none knows of a later one.

Sources:   the last entry of each bookie carries the LAC that its writer knew when it sent it; a writer that is idle
           tells the rest by an explicit LAC, which only the v3 request returns.
Floor:     a fragment begins behind a committed entry, so the LAC is never below the last fragment's first entry − 1.
Busy:      a bookie that has too many requests is asked again, unless the others are enough (busy.py).
Invariant: what is returned was the writer's LAC at some time, or below it: never beyond.
Read next: survey.py, reader.py
"""

from __future__ import annotations

from collections.abc import Awaitable

from magnetar.errors import DigestMismatchError, LacUnknownError
from magnetar.ids import BookieId, EntryId
from magnetar.ledger.answers import Answer, Finding, describe, exchange, interpret
from magnetar.ledger.busy import ask_while_busy
from magnetar.ledger.keys import LedgerKeys
from magnetar.ledger.parts import Parts
from magnetar.ledger.survey import survey
from magnetar.metadata.bookkeeper.ledger_metadata import NO_ENTRY, LedgerMetadata
from magnetar.quorum.coverage import Meaning
from magnetar.quorum.sizes import QuorumSizes
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.messages import V2, V3, AnyResponse, ReadEntry, ReadLac, ReadLacResponse
from magnetar.wire.bookkeeper.packet import LAST_ENTRY


def sizes_of(metadata: LedgerMetadata) -> QuorumSizes:
    return QuorumSizes(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)


def lac_floor(metadata: LedgerMetadata) -> EntryId:
    """What the metadata alone says to be committed."""
    if metadata.is_closed:
        return metadata.last_entry_id
    return EntryId(metadata.fragments[-1].first_entry_id - 1)


async def read_lac(metadata: LedgerMetadata, keys: LedgerKeys, parts: Parts, *, explicit: bool = True) -> EntryId:
    """By quorum. `explicit` asks for explicit LACs too. LacUnknownError if too few bookies answer."""
    if metadata.is_closed:
        return metadata.last_entry_id
    timeout_s = parts.config.read_timeout_ms / 1000
    request = ReadLac(keys.ledger_id, version=V3) if explicit else ReadEntry(keys.ledger_id, LAST_ENTRY, version=V2)

    async def ask(bookie: BookieId) -> Answer:
        return interpret_lac(keys, await exchange(parts.bookies, bookie, request, timeout_s))

    def attempt(bookie: BookieId) -> Awaitable[Answer]:
        return ask_while_busy(lambda: ask(bookie), parts.entropy.random, timeout_s)

    ensemble = metadata.fragments[-1].ensemble
    found = await survey(sizes_of(metadata), ensemble, attempt, lambda answer: answer.meaning is not Meaning.NOTHING)
    if not found.is_covered:
        raise LacUnknownError(
            f"how far ledger {keys.ledger_id} is committed cannot be said ({describe(found.answers)}): "
            "try again when these bookies are back"
        )
    known = [answer.max_lac for answer in found.answers.values() if answer.max_lac is not None]
    return EntryId(max(*known, lac_floor(metadata), NO_ENTRY))


def interpret_lac(keys: LedgerKeys, response: AnyResponse | Answer) -> Answer:
    """Of a read of the last entry or of the LAC; `max_lac` is what it tells."""
    if not isinstance(response, ReadLacResponse) or response.code is not Code.EOK:
        answer = interpret(keys, LAST_ENTRY, response)
        return _telling(answer, answer.entries[0].lac) if answer.entries else answer
    lacs = []
    try:
        if response.lac_body:
            lacs.append(keys.digest.open_lac(keys.ledger_id, response.lac_body))
        if response.last_entry_body:
            lacs.append(keys.digest.open_last(keys.ledger_id, response.last_entry_body).lac)
    except DigestMismatchError as error:
        return Answer(Finding.DAMAGED, code=Code.EOK, why=str(error))
    return Answer(Finding.PRESENT, code=Code.EOK, max_lac=max(lacs, default=NO_ENTRY))


def _telling(answer: Answer, lac: int) -> Answer:
    """Only what the digest covers counts, not what the bookie adds in its own words."""
    return Answer(answer.finding, answer.entries, answer.code, lac, answer.why)
