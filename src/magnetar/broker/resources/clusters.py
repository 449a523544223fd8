"""Clusters and their addresses. A broker needs its own; the others are for replication."""

from __future__ import annotations

from magnetar.broker.resources import paths
from magnetar.broker.resources.documents import Decision, Document, Documents
from magnetar.errors import NodeExistsError, NoNodeError, ResourceExistsError, ResourceMissingError
from magnetar.names import check_entity

_NEW: Document = {  # What Pulsar writes for a cluster without other data.
    "brokerClientTlsEnabled": False,
    "tlsAllowInsecureConnection": False,
    "brokerClientTlsEnabledWithKeyStore": False,
    "brokerClientTlsTrustStoreType": "JKS",
    "brokerClientTlsKeyStoreType": "JKS",
    "brokerClientSslFactoryPlugin": "org.apache.pulsar.common.util.DefaultPulsarSslFactory",
}
_NOT_CLUSTERS = ("global",)  # A name that stands for all of them.


def new_cluster(*, service_url: str = "", broker_service_url: str = "") -> Document:
    urls = {"serviceUrl": service_url, "brokerServiceUrl": broker_service_url}
    return {name: url for name, url in urls.items() if url} | _NEW


class Clusters:
    def __init__(self, documents: Documents) -> None:
        self._documents = documents

    async def names(self) -> list[str]:
        return [name for name in await self._documents.children(paths.CLUSTERS) if name not in _NOT_CLUSTERS]

    async def get(self, name: str) -> Document:
        found = await self._documents.read(paths.cluster(check_entity(name, "cluster")))
        if found is None:
            raise _missing(name)
        return found

    async def exists(self, name: str) -> bool:
        return await self._documents.exists(paths.cluster(check_entity(name, "cluster")))

    async def create(self, name: str, document: Document) -> None:
        try:
            await self._documents.create(paths.cluster(check_entity(name, "cluster")), document)
        except NodeExistsError:
            raise ResourceExistsError(f"cluster {name!r} exists already") from None

    async def update(self, name: str, decide: Decision) -> Document:
        try:
            return await self._documents.update(paths.cluster(check_entity(name, "cluster")), decide)
        except NoNodeError:
            raise _missing(name) from None

    async def delete(self, name: str) -> None:
        """Deletes the cluster. The caller checks whether tenants still use it."""
        try:
            await self._documents.delete(paths.cluster(check_entity(name, "cluster")))
        except NoNodeError:
            raise _missing(name) from None


def _missing(name: str) -> ResourceMissingError:
    return ResourceMissingError(f"cluster {name!r} does not exist")
