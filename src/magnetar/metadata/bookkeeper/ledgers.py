"""The ledgers' metadata in the store: create, read, compare-and-set, delete.

Order:     a create puts a random token into the value, which distinguishes our own create from another client's after
           a lost connection. Its loop is not that of metadata/compare_and_set.py: only the token is compared, and a
           failure to look after an unknown outcome ends it at once, since the id may be left unused.
           An update compares the version that was read; BadVersionError means that another client was faster.
           OutcomeUnknownError means: read again and compare before deciding.
           A delete also deletes directories that became empty, as Apache's clients do.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Final

from magnetar.errors import (
    LedgerExistsError,
    MalformedMetadataError,
    MetadataError,
    NodeExistsError,
    NoNodeError,
    NoSuchLedgerError,
    OutcomeUnknownError,
)
from magnetar.ids import LedgerId
from magnetar.metadata.bookkeeper.ledger_codec import decode, encode
from magnetar.metadata.bookkeeper.ledger_metadata import FormatVersion, LedgerMetadata, Versioned
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths, list_ledgers
from magnetar.metadata.paths import parent_of
from magnetar.metadata.store import MetadataStore, Watcher
from magnetar.runtime.runtime import Entropy

_CREATE_TRIES_MAX: Final = 3
_TOKEN_BITS: Final = 63  # A positive 64-bit number.


class LedgerMetadataStore:
    def __init__(self, store: MetadataStore, paths: BookKeeperPaths, entropy: Entropy) -> None:
        self._store = store
        self._paths = paths
        self._entropy = entropy

    async def create(self, metadata: LedgerMetadata) -> Versioned[LedgerMetadata]:
        """Stores a new ledger under its id; raises LedgerExistsError if another client did. It chooses the token.

        Versions 1 and 2 have no token: with them a lost connection ends in OutcomeUnknownError.
        """
        if metadata.format_version is not FormatVersion.BINARY_PROTOBUF:
            await self._create(metadata)
            return Versioned(metadata, 0)
        metadata = replace(metadata, c_token=self._entropy.random.getrandbits(_TOKEN_BITS) or 1)  # 0 means none.
        unknown: OutcomeUnknownError | None = None
        for _ in range(_CREATE_TRIES_MAX):
            try:
                await self._create(metadata)
                return Versioned(metadata, 0)
            except LedgerExistsError:
                if unknown is None:  # No other client has our token, and nothing of ours can exist yet.
                    raise
            except OutcomeUnknownError as error:
                unknown = error
            if stored := await self._find_own(metadata, unknown):
                return stored
        raise unknown or AssertionError("a create that is known to have failed raises at once")

    async def _create(self, metadata: LedgerMetadata) -> None:
        try:
            await self._store.create(self._paths.ledger(metadata.ledger_id), encode(metadata), make_parents=True)
        except NodeExistsError as error:
            raise LedgerExistsError(f"ledger {metadata.ledger_id} exists already") from error

    async def _find_own(self, ours: LedgerMetadata, unknown: OutcomeUnknownError) -> Versioned[LedgerMetadata] | None:
        """Returns what is stored, if we stored it; None if nothing is. Raises LedgerExistsError for another
        client's."""
        others = LedgerExistsError(f"ledger {ours.ledger_id} exists already, made by another client")
        try:
            await self._store.sync()  # Otherwise the read might not see the create whose outcome is in question.
            stored = await self.read(ours.ledger_id)
        except NoSuchLedgerError:
            return None
        except MalformedMetadataError:
            raise others from None
        except MetadataError:  # The look failed, so the outcome stays unknown.
            raise unknown from None
        if stored.value.c_token != ours.c_token:
            raise others
        return stored

    async def read(self, ledger_id: LedgerId, *, watch: Watcher | None = None) -> Versioned[LedgerMetadata]:
        """Reads a ledger's metadata. The watcher is called at the next change, also when the ledger does not exist."""
        node = await self._store.get(self._paths.ledger(ledger_id), watch=watch)
        if node is None:
            raise NoSuchLedgerError(f"ledger {ledger_id} does not exist")
        return Versioned(decode(ledger_id, node.value, node_created_ms=node.created_ms), node.version)

    async def update(self, metadata: LedgerMetadata, version: int) -> Versioned[LedgerMetadata]:
        """Replaces the metadata that had this version, in its own format version."""
        try:
            new_version = await self._store.put(self._paths.ledger(metadata.ledger_id), encode(metadata), version)
        except NoNodeError as error:
            raise NoSuchLedgerError(f"ledger {metadata.ledger_id} does not exist") from error
        return Versioned(metadata, new_version)

    async def delete(self, ledger_id: LedgerId, version: int) -> None:
        path = self._paths.ledger(ledger_id)
        try:
            await self._store.delete(path, version)
        except NoNodeError as error:
            raise NoSuchLedgerError(f"ledger {ledger_id} does not exist") from error
        await self._delete_empty_directories(parent_of(path))

    async def _delete_empty_directories(self, path: str) -> None:
        while path != self._paths.root:
            try:
                await self._store.delete(path)
            except MetadataError:  # Not empty, or deleted, or another client tidies up: the ledger itself is deleted.
                return
            path = parent_of(path)

    def list(self) -> AsyncIterator[LedgerId]:
        return list_ledgers(self._store, self._paths)
