"""The last entry that is known to be committed (LAC), from enough bookies that no other can know of a later one.

The last entry of each bookie carries the LAC that its writer knew when it sent the entry. A writer that is idle sends
the rest as an explicit LAC, which only the v3 request returns. A fragment begins after a committed entry, so the LAC is
never below the last fragment's first entry − 1.

Invariant: What is returned was the writer's LAC at some time, or below it: never beyond.
Failure:   A bookie that has too many requests is asked again, unless the others are enough
           (ledger/channels/answers.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from magnetar.errors import DigestMismatchError, LacUnknownError
from magnetar.ids import BookieId, EntryId
from magnetar.ledger.channels.answers import Answer, Finding, describe, exchange, interpret, retry_while_busy
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.metadata import LedgerKeys
from magnetar.metadata.bookkeeper.ledger_metadata import NO_ENTRY, LedgerMetadata
from magnetar.quorum.coverage import Coverage, EnsembleCoverage, Meaning
from magnetar.quorum.sizes import QuorumSizes
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.frames import LAST_ENTRY
from magnetar.wire.bookkeeper.messages import V2, V3, AnyResponse, ReadEntry, ReadLac, ReadLacResponse


def sizes_of(metadata: LedgerMetadata) -> QuorumSizes:
    return QuorumSizes(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)


def lac_floor(metadata: LedgerMetadata) -> EntryId:
    """Returns the last entry that the metadata alone shows to be committed."""
    if metadata.is_closed:
        return metadata.last_entry_id
    return EntryId(metadata.fragments[-1].first_entry_id - 1)


async def read_lac(
    metadata: LedgerMetadata, keys: LedgerKeys, context: LedgerContext, *, explicit: bool = True
) -> EntryId:
    """Reads the LAC by quorum. `explicit` asks for explicit LACs too. Raises LacUnknownError if too few bookies
    answer."""
    if metadata.is_closed:
        return metadata.last_entry_id
    reported = await reported_lac(metadata, keys, context, explicit=explicit)
    return EntryId(max(reported, lac_floor(metadata)))


async def reported_lac(
    metadata: LedgerMetadata, keys: LedgerKeys, context: LedgerContext, *, explicit: bool = True
) -> EntryId:
    """Reads the LAC that the bookies of the last ensemble report, which may be lower than what the metadata shows.
    Raises LacUnknownError if too few of them answer."""
    timeout_s = context.config.read_timeout_ms / 1000
    request = ReadLac(keys.ledger_id, version=V3) if explicit else ReadEntry(keys.ledger_id, LAST_ENTRY, version=V2)

    async def ask(bookie: BookieId) -> Answer:
        return interpret_lac(keys, await exchange(context.bookies, bookie, request, timeout_s))

    def attempt(bookie: BookieId) -> Awaitable[Answer]:
        return retry_while_busy(lambda: ask(bookie), context.entropy.random, timeout_s)

    ensemble = metadata.fragments[-1].ensemble
    found = await ask_ensemble(
        sizes_of(metadata), ensemble, attempt, lambda answer: answer.meaning is not Meaning.NOTHING
    )
    if not found.is_covered:
        raise LacUnknownError(
            f"the last committed entry of ledger {keys.ledger_id} is unknown ({describe(found.answers)}): "
            "try again when these bookies are back"
        )
    known = [answer.max_lac for answer in found.answers.values() if answer.max_lac is not None]
    return EntryId(max(known, default=NO_ENTRY))


def interpret_lac(keys: LedgerKeys, response: AnyResponse | Answer) -> Answer:
    """Interprets the answer to a read of the last entry or of the LAC, which becomes its `max_lac`."""
    if not isinstance(response, ReadLacResponse) or response.code is not Code.EOK:
        answer = interpret(keys, LAST_ENTRY, response)
        return _with_lac(answer, answer.entries[0].lac) if answer.entries else answer
    lacs = []
    try:
        if response.lac_body:
            lacs.append(keys.digest.open_lac(keys.ledger_id, response.lac_body))
        if response.last_entry_body:
            lacs.append(keys.digest.open_last(keys.ledger_id, response.last_entry_body).lac)
    except DigestMismatchError as error:
        return Answer(Finding.DAMAGED, code=Code.EOK, why=str(error))
    return Answer(Finding.PRESENT, code=Code.EOK, max_lac=max(lacs, default=NO_ENTRY))


def _with_lac(answer: Answer, lac: int) -> Answer:
    """Takes the LAC that the digest covers, not the one that the bookie adds."""
    return Answer(answer.finding, answer.entries, answer.code, lac, answer.why)


class EnsembleAnswers(NamedTuple):
    is_covered: bool
    answers: dict[BookieId, Answer]


async def ask_ensemble(
    sizes: QuorumSizes,
    ensemble: Sequence[BookieId],
    attempt: Callable[[BookieId], Awaitable[Answer]],
    counts: Callable[[Answer], bool],
) -> EnsembleAnswers:
    """Asks every bookie at once, until the answers cover every write set (quorum/coverage.py), or cannot any more.

    `counts` decides whether an answer is one. Attempts that are still running then are cancelled; their bookies carry
    out what they were sent anyway. Each attempt bounds its own time.
    """
    coverage = EnsembleCoverage(sizes)
    answers: dict[BookieId, Answer] = {}
    asked = {asyncio.ensure_future(attempt(bookie)): place for place, bookie in enumerate(ensemble)}
    try:
        while coverage.state is Coverage.PENDING:
            await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            for task in [task for task in asked if task.done()]:
                place = asked.pop(task)
                answer = answers[ensemble[place]] = task.result()
                (coverage.on_answer if counts(answer) else coverage.on_failure)(place)
        return EnsembleAnswers(coverage.state is Coverage.COVERED, answers)
    finally:
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
