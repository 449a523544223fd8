"""A change of one node, tried again until its outcome is known, although answers get lost.

    async def attempt(must_look: bool) -> int:
        if must_look:
            ...                         sync, read the node again, and return if an earlier attempt was done
        return await store.put(path, value, version)

    await try_until_known(attempt, backoff, TRIES_MAX, lost_race=BadVersionError, on_retry=…)

Order:     an OutcomeUnknownError means that the attempt may have been done. Every later attempt must look first: what
           it finds may be its own work. MetadataUnavailableError and SessionExpiredError mean that the attempt was not
           done; they alone give no reason to look.
Invariant: once an outcome was unknown, the error that is raised in the end is that one. A later failure, be it a lost
           race or a store that cannot be reached, does not prove that the change was not done.
Limits:    a number of attempts with pauses between them.
Read next: loops whose rules differ, each with its reason: topic/cursor/ledger_storage.py,
           broker/resources/documents.py, schemas/storage.py, bookkeeper/ledgers.py,
           bookkeeper/underreplication.py, staging/sink.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias, TypeVar

from magnetar.errors import (
    MetadataError,
    MetadataUnavailableError,
    NoNodeError,
    OutcomeUnknownError,
    SessionExpiredError,
)
from magnetar.metadata.store import MetadataStore
from magnetar.runtime.backoff import Backoff

T = TypeVar("T")

LostRace: TypeAlias = type[MetadataError] | tuple[type[MetadataError], ...]

TRIES_MAX: Final = 12
"""With the pauses of a `Backoff` between them, about half a minute of a store that cannot be reached."""


async def try_until_known(
    attempt: Callable[[bool], Awaitable[T]],
    backoff: Backoff,
    tries_max: int = TRIES_MAX,
    *,
    lost_race: LostRace = (),
    on_retry: Callable[[MetadataError], None],
) -> T:
    """Returns the result of the first attempt that succeeds. Every error but those below is raised at once.

    `attempt` must look if its argument is true: after an unknown outcome, or a lost race, in any attempt before it.
    `lost_race`: what means that another client was faster. Without it, such an error is raised at once.
    `on_retry`: called with the failure before each pause.
    """
    assert tries_max > 0
    must_look = False
    unknown: OutcomeUnknownError | None = None
    failure: MetadataError
    for tries_left in reversed(range(tries_max)):
        try:
            return await attempt(must_look)
        except OutcomeUnknownError as error:
            must_look, unknown, failure = True, error, error
        except lost_race as error:
            must_look, failure = True, unknown or error
        except (MetadataUnavailableError, SessionExpiredError) as error:  # This attempt was not done.
            failure = unknown or error
        if not tries_left:
            raise failure
        on_retry(failure)
        await asyncio.sleep(backoff.next_s())
    raise AssertionError("the last attempt returns or raises")


async def delete_until_known(store: MetadataStore, path: str, version: int, tries_max: int = TRIES_MAX) -> None:
    """Deletes the node that has this version; a node that does not exist is deleted.

    After an unknown outcome the same delete is tried again at once: if the earlier one was done, the node is missing.
    OutcomeUnknownError if every answer was lost. BadVersionError and NotEmptyError: it was not deleted.
    """
    for _ in range(tries_max):
        try:
            return await store.delete(path, version)
        except NoNodeError:
            return None
        except OutcomeUnknownError:
            await store.sync()
    raise OutcomeUnknownError(f"{path} may or may not be deleted: the connection was lost repeatedly")
