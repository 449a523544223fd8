"""Changing a ledger's metadata although others may change it too, and although answers get lost.

Loop:      decide what to make of what is stored → write it at the version that was read → on a lost race, or when
           nobody knows whether it was done, read again and decide again. The decision must therefore recognise its own
           work, and say None: nothing to do.
Bounds:    so many tries, with pauses; then the last error, which says whether the outcome is unknown.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from magnetar.errors import (
    BadVersionError,
    MetadataError,
    MetadataUnavailableError,
    OutcomeUnknownError,
    SessionExpiredError,
)
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.metadata.bookkeeper.ledgers import LedgerMetadataStore
from magnetar.metadata.bookkeeper.versioned import Versioned
from magnetar.metadata.store import MetadataStore
from magnetar.runtime.backoff import Backoff
from magnetar.runtime.entropy import Entropy

log = logging.getLogger(__name__)

TRIES_MAX: Final = 12
"""With the pauses between them, about half a minute of a store that cannot be reached."""


class MetadataParts(NamedTuple):
    ledgers: LedgerMetadataStore
    store: MetadataStore
    entropy: Entropy


async def compare_and_set(
    known: Versioned[LedgerMetadata], decide: Callable[[LedgerMetadata], LedgerMetadata | None], parts: MetadataParts
) -> Versioned[LedgerMetadata]:
    """What is stored in the end. `decide` returns what to store in place of its argument, or None to leave it so; it
    raises to give up."""
    backoff = Backoff(parts.entropy.random)
    must_look = False
    unknown: OutcomeUnknownError | None = None
    for tries_left in reversed(range(TRIES_MAX)):
        try:
            if must_look:
                await parts.store.sync()  # A server that is behind must not tell us what was true before.
                known = await parts.ledgers.read(known.value.ledger_id)
            wanted = decide(known.value)
            return known if wanted is None else await parts.ledgers.update(wanted, known.version)
        except BadVersionError as error:
            must_look, failure = True, _worst(unknown, error)
        except OutcomeUnknownError as error:
            must_look, unknown, failure = True, error, error
        except (MetadataUnavailableError, SessionExpiredError) as error:  # This try was not done.
            failure = _worst(unknown, error)
        if not tries_left:
            raise failure
        log.info("a ledger's metadata is tried again", extra={"ledger_id": known.value.ledger_id, "why": str(failure)})
        await asyncio.sleep(backoff.next_s())
    raise AssertionError("the last try returns or raises")


def _worst(unknown: OutcomeUnknownError | None, error: MetadataError) -> MetadataError:
    """Once nobody knows, a later failure to look does not change that."""
    return unknown or error
