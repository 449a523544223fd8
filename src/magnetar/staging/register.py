"""The register of an owner's staged ledgers, which a sweeper reads; the paths of all records; the settings for writing.

Order:     a ledger is noted before it is created, and forgotten after it is deleted: no staged ledger is ever without
           its note. A note without a ledger is left by a task that died in between, and costs nothing.
Format:    `/magnetar/sinks/<owner>`, with its intents and its register: a node for every staged ledger. The search for
           unwanted ledgers reads it: to look at all ledgers of a cluster takes as many reads as there are ledgers.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

from magnetar.errors import NodeExistsError, NoNodeError, OutcomeUnknownError, StagingError
from magnetar.metadata.store import MetadataStore
from magnetar.staging.records import EPOCH_MAX, Registration
from magnetar.wire.bookkeeper.digests import DigestType

SINKS: Final = "/magnetar/sinks"
OWNER_BYTES_MAX: Final = 512
"""The largest size of an owner's name in a path: part of every register's path and of a topic's property."""
_REGISTER: Final = "staged"
_EPOCH = re.compile(r"[0-9]{10}")


def owner_path(owner: str) -> str:
    """Raises StagingError for a name that cannot be an owner's."""
    encoded = quote(owner, safe="").replace(".", "%2E")  # A name of dots alone would be a relative path.
    if not owner or len(encoded) > OWNER_BYTES_MAX:
        raise StagingError(f"an owner's name has 1 to {OWNER_BYTES_MAX} bytes when encoded, not {len(encoded)}")
    return f"{SINKS}/{encoded}"


def owner_of(name: str) -> str:
    """Returns the owner of a child of SINKS."""
    return unquote(name)


def intent_path(owner: str, epoch: int) -> str:
    if not 0 <= epoch <= EPOCH_MAX:
        raise StagingError(f"an epoch is a number from 0 to {EPOCH_MAX}, not {epoch}")
    return f"{owner_path(owner)}/{epoch:010d}"


def epochs_in(children: list[str]) -> list[int]:
    """Returns the epochs of those children of an owner that are intents, oldest first."""
    return sorted(int(name) for name in children if _EPOCH.fullmatch(name))


def register_path(owner: str) -> str:
    return f"{owner_path(owner)}/{_REGISTER}"


def registration_path(owner: str, ledger_id: int) -> str:
    return f"{register_path(owner)}/{ledger_id}"


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
