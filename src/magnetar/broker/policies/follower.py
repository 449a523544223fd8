"""NamespaceFollower: follows a namespace's document in the metadata store, and its topics' policies in their events.

Order:     `document_ready` is set after the namespace was read once, `topics_ready` after its events were read to the
           end.
Failure:   a reader that fails is opened again, with pauses. Everything is then read into new documents, which replace
           the old ones at the end, so that no policy is forgotten in between.
Limits:    a namespace without `__change_events` has no topic policies. The two nodes under which that topic would
           appear are watched, and nothing is created.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing

from magnetar.broker.policies.event_schema import parsed_event_schema
from magnetar.broker.policies.events import (
    EventsReader,
    EventsTopics,
    IncomingEvent,
    PolicyChange,
    decode_deletion,
    decode_event,
)
from magnetar.broker.policies.namespace_state import NamespaceState, TopicDocuments
from magnetar.broker.resources import paths
from magnetar.broker.resources.documents import decode
from magnetar.errors import InvalidSchemaError, MagnetarError, MalformedEntryError, StoreClosedError
from magnetar.metadata.follow import follow_value
from magnetar.metadata.store import MetadataStore, Node, WatchEvent
from magnetar.names import CHANGE_EVENTS, NamespaceName
from magnetar.schemas.avro.schema import Schema
from magnetar.schemas.data import version_from_bytes
from magnetar.schemas.registry import SchemaRegistry
from magnetar.schemas.validation import parsed

log = logging.getLogger(__name__)

_PAUSE_MIN_S = 0.05
_PAUSE_MAX_S = 5.0


class NamespaceFollower:
    """Started by `start`, ended by `aclose`."""

    def __init__(
        self, state: NamespaceState, store: MetadataStore, events: EventsTopics | None, schemas: SchemaRegistry
    ) -> None:
        """Without `events` topics have no policies of their own."""
        self.state = state
        self.document_ready = asyncio.Event()
        self.topics_ready = asyncio.Event()
        self._store = store
        self._events = events
        self._schemas = schemas
        self._seen: Node | None = None
        self._is_caught_up = False
        self._applied: dict[int, tuple[int, int]] = {}  # Partition → the last event that was applied.
        self._progress = asyncio.Event()
        self._may_have_appeared = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def name(self) -> NamespaceName:
        return self.state.name

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks.append(loop.create_task(self._follow_document(), name=f"policies-of {self.name}"))
        if self._events is None:
            self.topics_ready.set()
        else:
            self._tasks.append(loop.create_task(self._follow_events(self._events), name=f"events-of {self.name}"))
        for task in self._tasks:
            task.add_done_callback(_log_if_failed)

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # --- the namespace's document -------------------------------------------------------------------------------------

    async def _follow_document(self) -> None:
        async with aclosing(follow_value(self._store, paths.namespace(self.name))) as nodes:
            async for node in nodes:
                await self._take_document(node)
                self.document_ready.set()

    async def refresh(self) -> None:
        """Reads the document at once, for a caller that has changed it and needs the change to be in force."""
        await self._take_document(await self._store.get(paths.namespace(self.name)))

    async def _take_document(self, node: Node | None) -> None:
        seen = self._seen
        if node and seen and node.created_ms == seen.created_ms and node.version < seen.version:
            await self.state.tell_all()  # Another read was quicker, and may not have called every listener yet.
            return
        self._seen = node
        path = paths.namespace(self.name)
        try:
            await self.state.set_document(None if node is None or not node.value else decode(path, node.value))
        except MagnetarError as error:
            log.error("a namespace's policies cannot be read", extra={"path": path, "why": str(error)})

    # --- its topics' policies -----------------------------------------------------------------------------------------

    async def wait_applied(self, position: tuple[int, int, int]) -> None:
        """Waits until the event at this position was applied. The caller has a timeout."""
        partition, *place = position
        while self._applied.get(partition, (-1, -1)) < tuple(place):
            await self._progress.wait()

    async def _follow_events(self, events: EventsTopics) -> None:
        pause_s = _PAUSE_MIN_S
        while True:
            try:
                await self._wait_for_topic()
                self._is_caught_up = False
                reader = await events.open_reader(self.name)
                if reader is not None:
                    await self._read_all(reader)
            except StoreClosedError:
                return
            except MagnetarError as error:
                log.warning("topic policies are read again", extra={"namespace": str(self.name), "why": str(error)})
            pause_s = _PAUSE_MIN_S if self._is_caught_up else min(2 * pause_s, _PAUSE_MAX_S)
            await asyncio.sleep(pause_s)

    async def _wait_for_topic(self) -> None:
        base = self.name.topic(CHANGE_EVENTS)
        candidates = [base.log_path, base.with_partition(0).log_path]
        while True:
            self._may_have_appeared.clear()
            nodes = await asyncio.gather(*(self._store.get(path, watch=self._on_appeared) for path in candidates))
            if any(node is not None for node in nodes):
                return
            if len(self.state.topics):  # The topic was deleted, and its policies with it.
                await self.state.set_topics(TopicDocuments())
            self.topics_ready.set()
            await self._may_have_appeared.wait()

    def _on_appeared(self, _event: WatchEvent) -> None:
        self._may_have_appeared.set()

    async def _read_all(self, reader: EventsReader) -> None:
        """Reads until the reader raises an error."""
        try:
            documents = TopicDocuments()
            while batch := await reader.read_available():
                for event in batch:
                    await self._take(event, documents)
            await self.state.set_topics(documents)
            self.topics_ready.set()
            self._is_caught_up = True
            self._tell_progress()
            while True:
                await reader.wait_for_more()
                while batch := await reader.read_available():
                    for event in batch:
                        await self._take(event, None)
                    self._tell_progress()
        finally:
            await reader.aclose()

    async def _take(self, event: IncomingEvent, documents: TopicDocuments | None) -> None:
        """Applies an event to `documents`, which are read from the beginning; without them, to those in force."""
        try:
            change, version = await self._understand(event)
        except (MalformedEntryError, InvalidSchemaError) as error:  # It stays malformed: the other events still count.
            log.error("an event cannot be read", extra={"namespace": str(self.name), "why": str(error)})
            change, version = None, None
        except MagnetarError:
            raise  # The event is not the cause: all events are read again.
        except Exception:  # Clients may publish anything here, and topics of the namespace must still be loaded.
            log.exception("an event cannot be read", extra={"namespace": str(self.name)})
            change, version = None, None
        if change is not None and documents is not None:
            documents.apply(change, version)
        elif change is not None:
            await self.state.apply(change, version)
        partition, ledger, entry = event.position
        self._applied[partition] = max((ledger, entry), self._applied.get(partition, (-1, -1)))

    async def _understand(self, event: IncomingEvent) -> tuple[PolicyChange | None, int | None]:
        if event.payload is None:
            return decode_deletion(event.key), None
        version = None if not event.schema_version else version_from_bytes(event.schema_version)
        return decode_event(event.payload, await self.schema_of(version)), version

    async def schema_of(self, version: int | None) -> Schema:
        """Returns the schema that an event was written with, or ours if that one is not registered."""
        name = self.name.topic(CHANGE_EVENTS).schema_name
        stored = None if version is None else await self._schemas.version(name, version)
        return parsed_event_schema() if stored is None else parsed(stored.schema)

    def _tell_progress(self) -> None:
        self._progress.set()
        self._progress = asyncio.Event()


def _log_if_failed(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.critical("policies are not followed any more", exc_info=task.exception(), extra={"task": task.get_name()})
