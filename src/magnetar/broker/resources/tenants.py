"""Tenants: their administrators, and the clusters they may use."""

from __future__ import annotations

from collections.abc import Iterable

from magnetar.broker.resources import paths
from magnetar.broker.resources.documents import Decision, Document, Documents, delete_tree
from magnetar.errors import (
    NodeExistsError,
    NoNodeError,
    ResourceExistsError,
    ResourceInUseError,
    ResourceLimitError,
    ResourceMissingError,
)
from magnetar.names import check_entity


def new_tenant(allowed_clusters: Iterable[str], admin_roles: Iterable[str] = ()) -> Document:
    return {"adminRoles": sorted(admin_roles), "allowedClusters": sorted(allowed_clusters)}


class Tenants:
    def __init__(self, documents: Documents, *, tenants_max: int) -> None:
        self._documents = documents
        self._tenants_max = tenants_max

    async def names(self) -> list[str]:
        return await self._documents.children(paths.POLICIES)

    async def get(self, name: str) -> Document:
        found = await self._documents.read(_path(name))
        if found is None:
            raise _missing(name)
        return found

    async def exists(self, name: str) -> bool:
        return await self._documents.exists(_path(name))

    async def create(self, name: str, document: Document) -> None:
        if self._tenants_max and len(await self.names()) >= self._tenants_max:
            raise ResourceLimitError(
                f"there are {self._tenants_max} tenants, as many as broker.tenants_max allows: raise it, or delete one"
            )
        try:
            await self._documents.create(_path(name), document)
        except NodeExistsError:
            raise ResourceExistsError(f"tenant {name!r} exists already") from None

    async def update(self, name: str, decide: Decision) -> Document:
        try:
            return await self._documents.update(_path(name), decide)
        except NoNodeError:
            raise _missing(name) from None

    async def delete(self, name: str) -> None:
        """Deletes the tenant. Raises ResourceInUseError while it has namespaces."""
        if not await self.exists(name):
            raise _missing(name)
        if namespaces := await self._documents.children(_path(name)):
            raise ResourceInUseError(f"tenant {name!r} has namespaces, {namespaces[0]!r} among them: delete them first")
        try:
            await self._documents.delete(_path(name))
        except NoNodeError:
            raise _missing(name) from None
        for root in (paths.LOCAL_POLICIES, paths.PARTITIONED_TOPICS, paths.OWNERSHIP, paths.MANAGED_LEDGERS):
            await delete_tree(
                self._documents.store, f"{root}/{name}"
            )  # Empty parents: the namespaces are deleted already.


def _path(name: str) -> str:
    return paths.tenant(check_entity(name, "tenant"))


def _missing(name: str) -> ResourceMissingError:
    return ResourceMissingError(f"tenant {name!r} does not exist: create it first")
