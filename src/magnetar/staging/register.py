"""The register of an owner's staged ledgers, which a sweeper reads; and the settings for writing them.

Order:     a ledger is noted before it is created, and forgotten after it is deleted: no staged ledger is ever without
           its note. A note without a ledger is left by a task that died in between, and costs nothing.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from magnetar.errors import NodeExistsError, NoNodeError, OutcomeUnknownError
from magnetar.metadata.store import MetadataStore
from magnetar.staging.paths import register_path, registration_path
from magnetar.staging.records import Registration
from magnetar.wire.bookkeeper.digests import DigestType

_TRIES_MAX = 3  # Lost answers in a row; each try is safe, as no other client makes or deletes this node.


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingSettings:
    """How staged ledgers of a job are written; the quorums are the cluster's (`GET /admin/v2/magnetar/cluster`)."""

    ensemble_size: int = 1
    write_quorum: int = 1
    ack_quorum: int = 1
    digest_type: DigestType = DigestType.CRC32C
    open_ledgers_max: int = 1_000
    """The limit of topics for one task: each is a ledger, and a few requests to the metadata store."""

    def __post_init__(self) -> None:
        if not 1 <= self.ack_quorum <= self.write_quorum <= self.ensemble_size:
            raise ValueError("staging: ack_quorum <= write_quorum <= ensemble_size must hold, each at least 1")


class Register:
    def __init__(self, store: MetadataStore, owner: str) -> None:
        self._store = store
        self._owner = owner

    async def note(self, ledger_id: int, epoch: int) -> None:
        path = registration_path(self._owner, ledger_id)
        for tries_left in reversed(range(_TRIES_MAX)):
            try:
                await self._store.create(path, str(epoch).encode(), make_parents=True)
            except NodeExistsError:  # Our own try before made it, and its answer was lost: ids are given out once.
                return
            except OutcomeUnknownError:
                if not tries_left:
                    raise
            else:
                return

    async def forget(self, ledger_id: int) -> None:
        with contextlib.suppress(NoNodeError):
            await self._store.delete(registration_path(self._owner, ledger_id))

    async def ledger_ids(self) -> list[int]:
        try:
            names = await self._store.children(register_path(self._owner))
        except NoNodeError:
            return []
        return sorted(int(name) for name in names if name.isdecimal())

    async def read(self, ledger_id: int) -> Registration | None:
        node = await self._store.get(registration_path(self._owner, ledger_id))
        if node is None:
            return None
        text = node.value.decode("ascii", "replace")
        return Registration(ledger_id, int(text) if text.isdecimal() else 0, node.created_ms)
