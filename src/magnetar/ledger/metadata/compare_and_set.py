"""Changing a ledger's metadata although others may change it too, and although answers get lost.

Order:     Decide what to make of what is stored → write it at the version that was read → after a lost race or an
           unknown outcome, read again and decide again. The decision must therefore recognise its own work, and return
           None if nothing is left to do.
Limits:    A number of tries, with pauses; then the last error, which says whether the outcome is unknown.
Read next: metadata/compare_and_set.py
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from magnetar.errors import BadVersionError, MetadataError
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerMetadata, Versioned
from magnetar.metadata.bookkeeper.ledgers import LedgerMetadataStore
from magnetar.metadata.compare_and_set import TRIES_MAX, try_until_known
from magnetar.metadata.store import MetadataStore
from magnetar.runtime.backoff import Backoff
from magnetar.runtime.runtime import Entropy

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
