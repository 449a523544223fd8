"""Isolation policies and failure domains of a cluster, as documents. broker/cluster/isolation.py applies them.

Format:    One document has all isolation policies of a cluster, by name: Pulsar's NamespaceIsolationData. Each failure
           domain is a document by itself: `{"brokers": ["host:port", …]}`. A broker is in at most one domain.
"""

from __future__ import annotations

from magnetar.broker.resources import paths
from magnetar.broker.resources.documents import Document, Documents
from magnetar.errors import NoNodeError, ResourceExistsError, ResourceMissingError
from magnetar.names import check_entity


class IsolationPolicies:
    def __init__(self, documents: Documents) -> None:
        self._documents = documents

    async def all(self, cluster: str) -> Document:
        """Returns the policies by name; none if the cluster has none."""
        return await self._documents.read(paths.isolation_policies(check_entity(cluster, "cluster"))) or {}

    async def get(self, cluster: str, name: str) -> Document:
        found = (await self.all(cluster)).get(name)
        if not isinstance(found, dict):
            raise _missing_policy(cluster, name)
        return found

    async def set(self, cluster: str, name: str, policy: Document) -> None:
        def decide(found: Document | None) -> Document:
            return (found or {}) | {name: policy}

        await self._documents.update_or_create(paths.isolation_policies(check_entity(cluster, "cluster")), decide)

    async def delete(self, cluster: str, name: str) -> None:
        def decide(found: Document | None) -> Document:
            if name not in (found or {}):
                raise _missing_policy(cluster, name)
            return {other: policy for other, policy in (found or {}).items() if other != name}

        await self._documents.update_or_create(paths.isolation_policies(check_entity(cluster, "cluster")), decide)


class FailureDomains:
    def __init__(self, documents: Documents) -> None:
        self._documents = documents

    async def all(self, cluster: str) -> dict[str, list[str]]:
        """Returns the brokers of each domain, by its name."""
        names = await self._documents.children(paths.failure_domains(check_entity(cluster, "cluster")))
        found = {name: await self._documents.read(paths.failure_domain(cluster, name)) for name in names}
        return {name: _brokers(document) for name, document in found.items() if document is not None}

    async def get(self, cluster: str, name: str) -> list[str]:
        path = paths.failure_domain(check_entity(cluster, "cluster"), check_entity(name, "failure domain"))
        found = await self._documents.read(path)
        if found is None:
            raise _missing_domain(cluster, name)
        return _brokers(found)

    async def set(self, cluster: str, name: str, brokers: list[str]) -> None:
        """ResourceExistsError if one of the brokers is in another domain."""
        path = paths.failure_domain(check_entity(cluster, "cluster"), check_entity(name, "failure domain"))
        for other, members in (await self.all(cluster)).items():
            taken = [broker for broker in brokers if broker in members]
            if other != name and taken:
                raise ResourceExistsError(
                    f"broker {taken[0]} is in failure domain {other}, and can be in one only: remove it there first"
                )
        await self._documents.update_or_create(path, lambda found: (found or {}) | {"brokers": sorted(set(brokers))})

    async def delete(self, cluster: str, name: str) -> None:
        path = paths.failure_domain(check_entity(cluster, "cluster"), check_entity(name, "failure domain"))
        try:
            await self._documents.delete(path)
        except NoNodeError:
            raise _missing_domain(cluster, name) from None


def _brokers(document: Document) -> list[str]:
    brokers = document.get("brokers")
    return [str(broker) for broker in brokers] if isinstance(brokers, list) else []


def _missing_policy(cluster: str, name: str) -> ResourceMissingError:
    return ResourceMissingError(f"isolation policy {name!r} of cluster {cluster!r} does not exist")


def _missing_domain(cluster: str, name: str) -> ResourceMissingError:
    return ResourceMissingError(f"failure domain {name!r} of cluster {cluster!r} does not exist")
