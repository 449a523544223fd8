"""The nodes of topics in the metadata store: read, compare-and-set, delete.

Path:      /managed-ledgers/{tenant}/{namespace}/persistent/{encoded name}
Owner:     every write names the version that it replaces. BadVersionError means that another broker has written: it
           owns the topic now. A lost connection never ends in a guess: the node is read again and compared.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from magnetar.errors import (
    BadVersionError,
    MetadataError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    OutcomeUnknownError,
    SessionExpiredError,
)
from magnetar.metadata.bookkeeper.versioned import Versioned
from magnetar.metadata.store import MetadataStore
from magnetar.runtime.backoff import Backoff
from magnetar.runtime.entropy import Entropy
from magnetar.topic.info import TopicInfo, decode_info, encode_info

log = logging.getLogger(__name__)

MANAGED_LEDGERS_ROOT: Final = "/managed-ledgers"
NO_NODE: Final = -1
"""The version of a node that is not there yet."""
_TRIES_MAX: Final = 12  # With the pauses between them, about half a minute of a store that cannot be reached.


def info_path(name: str) -> str:
    """Of a topic's node, by the name of its managed ledger."""
    return f"{MANAGED_LEDGERS_ROOT}/{name}"


class TopicInfoStore:
    def __init__(self, store: MetadataStore, entropy: Entropy) -> None:
        self._store = store
        self._entropy = entropy

    async def read(self, name: str) -> Versioned[TopicInfo] | None:
        node = await self._store.get(info_path(name))
        return None if node is None else Versioned(decode_info(node.value), node.version)

    async def write(self, name: str, info: TopicInfo, version: int) -> int:
        """Replaces what had this version, or makes the node for NO_NODE; returns the new version. BadVersionError if
        somebody else wrote, or deleted it."""
        path, value = info_path(name), encode_info(info)
        backoff = Backoff(self._entropy.random)
        unknown: OutcomeUnknownError | None = None
        failure: MetadataError
        for tries_left in reversed(range(_TRIES_MAX)):
            try:
                if unknown is not None and (done := await self._find_own(path, value, version)) is not None:
                    return done
                return await self._write(path, value, version)
            except OutcomeUnknownError as error:
                unknown = failure = error
            except (MetadataUnavailableError, SessionExpiredError) as error:  # This try was not done.
                failure = unknown or error
            if not tries_left:
                raise failure
            log.info("a topic's metadata is tried again", extra={"topic": name, "why": str(failure)})
            await asyncio.sleep(backoff.next_s())
        raise AssertionError("the last try returns or raises")

    async def _write(self, path: str, value: bytes, version: int) -> int:
        try:
            if version != NO_NODE:
                return await self._store.put(path, value, version)
            await self._store.create(path, value, make_parents=True)
        except (NodeExistsError, NoNodeError) as error:
            raise BadVersionError(f"{path} was made or deleted by somebody else: {error}") from error
        return 0

    async def _find_own(self, path: str, value: bytes, version: int) -> int | None:
        """The version that our own earlier try has made; None if it was not done."""
        await self._store.sync()  # Else the read might be behind the write whose outcome we look for.
        node = await self._store.get(path)
        if (NO_NODE if node is None else node.version) == version:
            return None
        if node is not None and node.version == version + 1 and node.value == value:
            return node.version  # Nobody else writes the same: each owner names a ledger of its own.
        raise BadVersionError(f"{path} was written by somebody else")

    async def delete(self, name: str, version: int) -> None:
        """NotEmptyError while it has cursors. A node that is gone is deleted."""
        for _ in range(_TRIES_MAX):
            try:
                return await self._store.delete(info_path(name), version)
            except NoNodeError:
                return None
            except OutcomeUnknownError:
                await self._store.sync()
        raise OutcomeUnknownError(f"{info_path(name)} may or may not be deleted: the store was lost again and again")
