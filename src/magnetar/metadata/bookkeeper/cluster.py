"""A cluster's place in the store: made once, recognised by its INSTANCEID, with LAYOUT for how it keeps its ledgers.

Invariant: root, LAYOUT, INSTANCEID (a UUID as text), available, available/readonly and cookies are made in one
           transaction, so no client ever sees half a cluster. `idgen` comes with the first ledger id; `idgen-long` must
           not exist before the short ids are used up (id_generator.py).
Format:    LAYOUT: format version LF class ":" version of that class; ours is always "2",
           HierarchicalLedgerManagerFactory, 1. Format version 1 has a short name in the place of the Java class. A
           missing LAYOUT means the same layout: Pulsar's own driver writes none.
Failure:   a place with an INSTANCEID, with ledgers, or with unexpected nodes is refused.
"""

from __future__ import annotations

import re
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
    UnsupportedLayoutError,
)
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.paths import ROOT, name_of, parent_of
from magnetar.metadata.store import Create, MetadataStore
from magnetar.runtime.runtime import Entropy

FORMAT_VERSION: Final = 2
HIERARCHICAL: Final = "org.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory"
HIERARCHICAL_VERSION: Final = 1
_HIERARCHICAL_IN_FORMAT_1: Final = "hierarchical"
_VALUE_BYTES_MAX: Final = 1_000  # Two short lines.
_INSTANCE_ID_BYTES_MAX: Final = 1_000  # A UUID has 36; others are kept as they are.
_VALUE = re.compile(r"([0-9]{1,9})\n([^\n:]+):([0-9]{1,9})\n*")


@dataclass(frozen=True, slots=True)
class LedgerLayout:
    manager: str = HIERARCHICAL
    manager_version: int = HIERARCHICAL_VERSION
    format_version: int = FORMAT_VERSION

    def require_supported(self) -> None:
        """Raises UnsupportedLayoutError unless the ledgers are where `paths.py` expects them."""
        known = HIERARCHICAL if self.format_version == FORMAT_VERSION else _HIERARCHICAL_IN_FORMAT_1
        if (self.manager, self.manager_version) != (known, HIERARCHICAL_VERSION):
            raise UnsupportedLayoutError(
                f"this cluster keeps its ledgers in the layout {self.manager} version {self.manager_version};"
                f" only {HIERARCHICAL} version {HIERARCHICAL_VERSION} is supported"
            )


@dataclass(frozen=True, slots=True)
class Cluster:
    """The identity of a cluster."""

    root: str
    instance_id: str | None
    """None for a cluster that an old release made; its cookies then have none either."""
    layout: LedgerLayout | None
    """None if the LAYOUT node is missing, which means the usual layout."""


async def init_cluster(
    store: MetadataStore, paths: BookKeeperPaths, entropy: Entropy, *, accept_existing: bool = False
) -> Cluster:
    """Makes a new cluster. If one exists: ClusterExistsError, or that cluster if it is acceptable."""
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
        if accept_existing:  # Another process made it at the same moment.
            return await read_cluster(store, paths)
        raise ClusterExistsError(f"another process is initialising a cluster at {paths.root}") from error
    return await read_cluster(store, paths)


async def _require_made(
    store: MetadataStore, paths: BookKeeperPaths, instance_id: str, unknown: OutcomeUnknownError
) -> None:
    """Compares the instance id, which shows whether our transaction made the cluster. A failed look leaves it
    unknown."""
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
    """Returns why no cluster can be made below an existing root; None if the place is free."""
    if paths.instance_id not in [create.path for create in missing]:
        return f"a cluster exists at {paths.root} already; choose another root, or use it as it is"
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
    """Returns the existing cluster. Raises ClusterMissingError, or UnsupportedLayoutError if it has another layout."""
    layout_node = await store.get(paths.layout)
    instance_node = await store.get(paths.instance_id)
    if layout_node is None and instance_node is None and not await _has_ledger_root(store, paths):
        raise ClusterMissingError(f"no cluster exists at {paths.root}; make one with: magnetar metadata init")
    layout = None if layout_node is None else decode_layout(layout_node.value)
    if layout is not None:
        layout.require_supported()
    return Cluster(paths.root, None if instance_node is None else decode_instance_id(instance_node.value), layout)


async def _has_ledger_root(store: MetadataStore, paths: BookKeeperPaths) -> bool:
    try:
        return name_of(paths.available) in await store.children(paths.root)
    except NoNodeError:
        return False


def encode_layout(layout: LedgerLayout) -> bytes:
    return f"{layout.format_version}\n{layout.manager}:{layout.manager_version}".encode()


def decode_layout(value: bytes) -> LedgerLayout:
    """Decodes any layout that is well formed, supported or not."""
    if len(value) > _VALUE_BYTES_MAX:
        raise MalformedMetadataError(f"LAYOUT has {len(value)} bytes")
    try:
        found = _VALUE.fullmatch(value.decode())
    except UnicodeDecodeError as error:
        raise MalformedMetadataError(f"LAYOUT is not text: {error}") from error
    if found is None:
        raise MalformedMetadataError(f"LAYOUT is not a version and 'class:version': {value[:80]!r}")
    layout = LedgerLayout(found[2], int(found[3]), int(found[1]))
    if not 1 <= layout.format_version <= FORMAT_VERSION:
        raise MalformedMetadataError(
            f"LAYOUT has format version {layout.format_version}; known are 1 and {FORMAT_VERSION}"
        )
    return layout


def decode_instance_id(value: bytes) -> str:
    if not 0 < len(value) <= _INSTANCE_ID_BYTES_MAX:
        raise MalformedMetadataError(f"INSTANCEID has {len(value)} bytes")
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise MalformedMetadataError(f"INSTANCEID is not text: {error}") from error
