"""A cluster's place in the store: made once, recognised by its INSTANCEID.

Nodes:     root, LAYOUT, INSTANCEID (a UUID as text), available, available/readonly, cookies. All in one transaction,
           so nobody ever sees half a cluster. `idgen` comes with the first ledger id; `idgen-long` must not be there
           before the short ids are used up (id_generator.py).
Refused:   a place that has an INSTANCEID, or ledgers, or anything else that we did not expect.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from magnetar.errors import (
    ClusterExistsError,
    ClusterMissingError,
    MalformedMetadataError,
    MetadataError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    OutcomeUnknownError,
    TransactionFailedError,
)
from magnetar.metadata.bookkeeper.layout import LedgerLayout, decode_layout, encode_layout
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.paths import ROOT, name_of, parent_of
from magnetar.metadata.store import Create, MetadataStore
from magnetar.runtime.entropy import Entropy

_INSTANCE_ID_BYTES_MAX: Final = 1_000  # A UUID has 36; others are kept as they are.


@dataclass(frozen=True, slots=True)
class Cluster:
    """What identifies a cluster."""

    root: str
    instance_id: str | None
    """None for a cluster that an old release made; cookies then have none either."""
    layout: LedgerLayout | None
    """None if there is no LAYOUT node, which means the usual one."""


async def init_cluster(
    store: MetadataStore, paths: BookKeeperPaths, entropy: Entropy, *, accept_existing: bool = False
) -> Cluster:
    """Makes a new cluster. Where one is already: ClusterExistsError, or that cluster if it is acceptable."""
    instance_id = str(entropy.uuid())
    wanted = [
        Create(paths.root),
        Create(paths.layout, encode_layout(LedgerLayout())),
        Create(paths.instance_id, instance_id.encode()),
        Create(paths.available),
        Create(paths.readonly),
        Create(paths.cookies),
    ]
    missing = [create for create in wanted if await store.get(create.path) is None]
    if wanted[0] not in missing and (refusal := await _refusal(store, paths, missing)):
        if accept_existing:
            return await read_cluster(store, paths)
        raise ClusterExistsError(refusal)
    await _make_parents(store, paths.root)
    try:
        await store.transact(missing)
    except OutcomeUnknownError as error:
        await _require_made(store, paths, instance_id, error)
    except TransactionFailedError as error:
        if not isinstance(error.cause, NodeExistsError):
            raise
        if accept_existing:  # Somebody else made it at the same moment.
            return await read_cluster(store, paths)
        raise ClusterExistsError(f"another process is initialising a cluster at {paths.root}") from error
    return await read_cluster(store, paths)


async def _require_made(
    store: MetadataStore, paths: BookKeeperPaths, instance_id: str, unknown: OutcomeUnknownError
) -> None:
    """The instance id tells whether it was our transaction that made the cluster. Who cannot look does not know."""
    try:
        await store.sync()
        node = await store.get(paths.instance_id)
    except MetadataError:
        raise unknown from None
    if node is None:
        raise MetadataUnavailableError(
            "the connection was lost while the cluster was made; nothing was made: try again"
        )
    if node.value != instance_id.encode():
        raise ClusterExistsError(f"another process has initialised a cluster at {paths.root}")


async def _refusal(store: MetadataStore, paths: BookKeeperPaths, missing: list[Create]) -> str | None:
    """Why no cluster can be made below an existing root; None if the place is free."""
    if paths.instance_id not in [create.path for create in missing]:
        return f"there is a cluster at {paths.root} already; choose another root, or use it as it is"
    if (layout := await store.get(paths.layout)) is not None:
        decode_layout(layout.value).require_supported()
    free = [name_of(path) for path in (paths.layout, paths.available, paths.cookies)]
    strange = [name for name in await store.children(paths.root) if name not in free]
    if strange:
        return f"{paths.root} has no INSTANCEID but is not empty (it has {', '.join(strange[:5])}); choose another root"
    return None


async def _make_parents(store: MetadataStore, root: str) -> None:
    parent = parent_of(root) if root != ROOT else ROOT
    if parent == ROOT or await store.get(parent) is not None:
        return
    try:
        await store.create(parent, make_parents=True)
    except NodeExistsError:
        return


async def read_cluster(store: MetadataStore, paths: BookKeeperPaths) -> Cluster:
    """The cluster that is there: ClusterMissingError if none, UnsupportedLayoutError for one of another layout."""
    layout_node = await store.get(paths.layout)
    instance_node = await store.get(paths.instance_id)
    if layout_node is None and instance_node is None and not await _has_ledger_root(store, paths):
        raise ClusterMissingError(f"there is no cluster at {paths.root}; make one with: magnetar metadata init")
    layout = None if layout_node is None else decode_layout(layout_node.value)
    if layout is not None:
        layout.require_supported()
    return Cluster(paths.root, None if instance_node is None else decode_instance_id(instance_node.value), layout)


async def _has_ledger_root(store: MetadataStore, paths: BookKeeperPaths) -> bool:
    try:
        return name_of(paths.available) in await store.children(paths.root)
    except NoNodeError:
        return False


def decode_instance_id(value: bytes) -> str:
    if not 0 < len(value) <= _INSTANCE_ID_BYTES_MAX:
        raise MalformedMetadataError(f"INSTANCEID has {len(value)} bytes")
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise MalformedMetadataError(f"INSTANCEID is not text: {error}") from error
