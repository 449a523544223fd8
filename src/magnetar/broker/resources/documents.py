"""Documents: nodes whose value is a JSON object, read through a cache and changed by compare-and-set.

A change reads, decides, and writes at the version that was read. The change is made to the object as it was read, so
that unknown fields and the order stay. The decision sees the current state, so it must be one that may be made twice:
"set this field", not "add one".

Failure:   After a lost race or an unknown outcome the change is repeated, at most `TRIES_MAX` times. The loop differs
           from metadata/compare_and_set.py: a decision may be made twice, so an unknown outcome is only a reason to
           look again, as is every other failure; the last one is raised. An error of the decision itself is raised at
           once, even if its class is one that a store might raise.
Limits:    A cached node is dropped when its watch fires; a caller that must see the changes of other clients calls
           `read_fresh`.
"""

from __future__ import annotations

import asyncio
import copy
import json
import logging
from collections.abc import Callable
from typing import Any, Final, Generic, TypeAlias, TypeVar

from magnetar.errors import (
    BadVersionError,
    MalformedMetadataError,
    MetadataError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    OutcomeUnknownError,
    ResourceExistsError,
    ResourceMissingError,
    SessionExpiredError,
)
from magnetar.metadata.cache import MetadataCache
from magnetar.metadata.store import MetadataStore, Node

log = logging.getLogger(__name__)

Name = TypeVar("Name")

Document: TypeAlias = dict[str, Any]
Decision: TypeAlias = Callable[[Document], Document | None]
"""Maps what is stored to what is to be stored; None leaves it. May change and return its argument."""

TRIES_MAX: Final = 10
_PAUSE_S = 0.02  # Before the second try; doubled each time, ten seconds in all.
_TEMPORARY = (BadVersionError, OutcomeUnknownError, MetadataUnavailableError, SessionExpiredError)


def encode(document: Document) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def decode(path: str, value: bytes) -> Document:
    try:
        document = json.loads(value)
    except ValueError as error:
        raise MalformedMetadataError(f"{path} is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise MalformedMetadataError(f"{path} is {type(document).__name__} in JSON, not an object")
    return document


class Documents:
    """Reads and changes documents of any kind: the caller knows what a path holds."""

    def __init__(self, store: MetadataStore, cache: MetadataCache) -> None:
        self.store = store
        self.cache = cache

    async def read(self, path: str, *, expects_nothing: bool = False) -> Document | None:
        """Returns the caller's own copy; None if the node is missing, or is empty: a parent that another client
        made. `expects_nothing`: as in the store's `get`."""
        node = await self.cache.get(path, expects_nothing=expects_nothing)
        return _document(path, node)

    async def read_fresh(self, path: str) -> Document | None:
        """Returns a state that includes every change that any client completed before the call."""
        await self.store.sync()
        self.cache.drop(path)
        return _document(path, await self.store.get(path))

    async def exists(self, path: str) -> bool:
        return await self.cache.get(path) is not None

    async def children(self, path: str) -> list[str]:
        """Returns no names below a node that does not exist."""
        try:
            return await self.cache.children(path)
        except NoNodeError:
            return []

    async def create(self, path: str, document: Document) -> None:
        """Raises NodeExistsError if it exists, unless it is an empty parent."""
        value = encode(document)
        try:
            await self.store.create(path, value, make_parents=True)
        except NodeExistsError:
            await self._fill_if_empty(path, value)
        finally:
            self.cache.drop(path)

    async def _fill_if_empty(self, path: str, value: bytes) -> None:
        """Writes the value into an empty node, which exists because a child was made first."""
        node = await self.store.get(path)
        if node is None or node.value:
            raise NodeExistsError(f"{path} exists already")
        try:
            await self.store.put(path, value, node.version)
        except BadVersionError:
            raise NodeExistsError(f"{path} exists already") from None

    async def update(self, path: str, decide: Decision) -> Document:
        """Returns what is stored in the end. Raises NoNodeError for a missing node, and any error of `decide`."""

        def of_existing(document: Document | None) -> Document | None:
            if document is None:
                raise NoNodeError(f"{path} does not exist")
            return decide(document)

        return await self._change(path, of_existing)

    async def update_or_create(self, path: str, decide: Callable[[Document | None], Document | None]) -> Document:
        """Passes None to the decision if the node is missing."""
        return await self._change(path, decide)

    async def delete(self, path: str) -> None:
        """Raises NoNodeError if it does not exist; NotEmptyError if it has children."""
        try:
            await self.store.delete(path)
        finally:
            self.cache.drop(path)

    async def _change(self, path: str, decide: Callable[[Document | None], Document | None]) -> Document:
        pause_s = _PAUSE_S
        for tries_left in reversed(range(TRIES_MAX)):
            is_first = tries_left == TRIES_MAX - 1
            try:
                node = await self._read(path, must_sync=not is_first)
            except _TEMPORARY as error:
                failure: MetadataError = error
            else:
                before = _document(path, node)
                after = decide(copy.deepcopy(before))  # What it raises is for the caller, whatever class it has.
                if after is None or after == before:
                    return before or {}
                try:
                    await self._write(path, node, after)
                except (*_TEMPORARY, NodeExistsError) as error:
                    failure = error
                else:
                    return after
            if not tries_left:
                raise failure
            log.info("a document is changed again", extra={"path": path, "why": str(failure)})
            await asyncio.sleep(pause_s)
            pause_s *= 2
        raise AssertionError("the last try returns or raises")

    async def _read(self, path: str, *, must_sync: bool) -> Node | None:
        if must_sync:
            await self.store.sync()  # A server that lags must not return an old state.
        return await self.store.get(path)

    async def _write(self, path: str, node: Node | None, document: Document) -> None:
        try:
            if node is None:
                await self.store.create(path, encode(document), make_parents=True)
            else:
                await self.store.put(path, encode(document), node.version)
        finally:
            self.cache.drop(path)


class NamedDocuments(Generic[Name]):
    """The documents of one kind of resource, by name. Errors name what is missing or exists already."""

    def __init__(
        self,
        documents: Documents,
        path: Callable[[Name], str],
        what: Callable[[Name], str],
        advice: str = ": create it first",
    ) -> None:
        self._documents = documents
        self._path = path
        self._what = what
        self._advice = advice

    async def get(self, name: Name) -> Document:
        found = await self._documents.read(self._path(name))
        if found is None:
            raise self._missing(name)
        return found

    async def exists(self, name: Name) -> bool:
        return await self._documents.exists(self._path(name))

    async def require(self, name: Name) -> None:
        if not await self.exists(name):
            raise self._missing(name)

    async def create(self, name: Name, document: Document) -> None:
        try:
            await self._documents.create(self._path(name), document)
        except NodeExistsError:
            raise ResourceExistsError(f"{self._what(name)} exists already") from None

    async def update(self, name: Name, decide: Decision) -> Document:
        try:
            return await self._documents.update(self._path(name), decide)
        except NoNodeError:
            raise self._missing(name) from None

    async def delete(self, name: Name) -> None:
        try:
            await self._documents.delete(self._path(name))
        except NoNodeError:
            raise self._missing(name) from None

    def _missing(self, name: Name) -> ResourceMissingError:
        return ResourceMissingError(f"{self._what(name)} does not exist{self._advice}")


async def delete_tree(store: MetadataStore, path: str, *, nodes_max: int = 100_000) -> None:
    """Deletes the node and all below it, leaves first; missing nodes are no error. Raises MetadataError beyond the
    limit."""
    order = [path]
    for found in order:
        try:
            order.extend(f"{found}/{name}" for name in await store.children(found))
        except NoNodeError:
            continue
        if len(order) > nodes_max:
            raise MetadataError(f"more than {nodes_max:_} nodes below {path}: delete them in parts")
    for found in reversed(order):
        try:
            await store.delete(found)
        except NoNodeError:
            continue


def _document(path: str, node: Node | None) -> Document | None:
    return decode(path, node.value) if node is not None and node.value else None
