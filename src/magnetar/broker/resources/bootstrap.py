"""What a broker expects to be there: its cluster, tenants `public` and `pulsar`, their namespaces, `/bookies`.

Quick:     all nodes are looked at together, and what is missing is made in one transaction, parents included.
Races:     several brokers may do it at once; whoever loses makes what is still missing node by node.
Present:   what is there is left as it is, but for the name of the cluster, which is added where tenants and namespaces
           list the clusters they may use.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from magnetar.broker.names import DEFAULT_NAMESPACE, SYSTEM_NAMESPACE, check_entity
from magnetar.broker.resources import paths
from magnetar.broker.resources.bundles import Bundles
from magnetar.broker.resources.documents import Document, Documents, encode
from magnetar.broker.resources.namespaces import new_policies
from magnetar.broker.resources.tenants import new_tenant
from magnetar.errors import TransactionFailedError
from magnetar.metadata.paths import ancestors_of
from magnetar.metadata.store import Create


@dataclass(frozen=True, slots=True)
class _Wanted:
    path: str
    document: Document
    clusters_field: str | None = None
    """Where a document that is there already lists its clusters."""


async def bootstrap(documents: Documents, cluster: str, cluster_document: Document, *, bundles: int) -> None:
    check_entity(cluster, "cluster")
    wanted = {each.path: each for each in _wanted(cluster, cluster_document, Bundles.equal(bundles))}
    parents = sorted({parent for path in wanted for parent in ancestors_of(path)} - wanted.keys())
    everything = [*parents, *wanted]  # Outer nodes first: sorted, and listed so.
    nodes = await asyncio.gather(*(documents.store.get(path) for path in everything))
    missing = [path for path, node in zip(everything, nodes, strict=True) if node is None]
    if missing:
        values = {path: encode(each.document) for path, each in wanted.items()}
        creates = [Create(path, values.get(path, b"")) for path in missing]
        try:
            await documents.store.transact(creates)
        except TransactionFailedError:
            missing = []  # Somebody else is at it: look at every node by itself.
    await asyncio.gather(*(_ensure(documents, each, cluster) for path, each in wanted.items() if path not in missing))


def _wanted(cluster: str, cluster_document: Document, bundles: Bundles) -> list[_Wanted]:
    tenants = [DEFAULT_NAMESPACE.tenant, SYSTEM_NAMESPACE.tenant]
    namespaces = [DEFAULT_NAMESPACE, SYSTEM_NAMESPACE]
    return [
        _Wanted(paths.BOOKIES, {}),
        _Wanted(paths.cluster(cluster), cluster_document),
        *(_Wanted(paths.tenant(name), new_tenant([cluster]), "allowedClusters") for name in tenants),
        *(
            _Wanted(paths.namespace(name), new_policies([cluster], bundles), "replication_clusters")
            for name in namespaces
        ),
    ]


async def _ensure(documents: Documents, wanted: _Wanted, cluster: str) -> None:
    field = wanted.clusters_field

    def decide(found: Document | None) -> Document | None:
        if found is None:
            return wanted.document
        if field is None or cluster in (found.get(field) or []):
            return None
        return found | {field: sorted({*(found.get(field) or []), cluster})}

    await documents.update_or_create(wanted.path, decide)
