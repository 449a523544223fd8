"""Following one namespace: its document in the metadata store, and its topics' policies in `__change_events`.

Ready:     `document_ready` when the namespace was looked at once, `topics_ready` when its events were read to the end.
Trouble:   a reader that fails is opened again, with pauses; everything is read again into new documents, which take the
           place of the old ones at the end, so that policies are never forgotten in between.
Absent:    a namespace without `__change_events` has no topic policies; the two nodes under which it would appear are
           watched, and nothing is created.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing

from magnetar.broker.names import CHANGE_EVENTS, NamespaceName
from magnetar.broker.policies.event_schema import parsed_event_schema
from magnetar.broker.policies.events import PolicyChange, decode_deletion, decode_event
from magnetar.broker.policies.events_topic import EventsReader, EventsTopics, IncomingEvent
from magnetar.broker.policies.namespace_state import NamespaceState, TopicDocuments
from magnetar.broker.resources import paths
from magnetar.broker.resources.documents import decode
from magnetar.broker.schemas.avro.schema import Schema
from magnetar.broker.schemas.data import version_from_bytes
from magnetar.broker.schemas.registry import SchemaRegistry
from magnetar.broker.schemas.validation import parsed
from magnetar.errors import InvalidSchemaError, MagnetarError, MalformedEntryError, StoreClosedError
from magnetar.metadata.follow import follow_value
from magnetar.metadata.store import MetadataStore, Node, WatchEvent

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
        self._applied: dict[int, tuple[int, int]] = {}  # Partition → the last event that was taken in.
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
                self._take_document(node)
                self.document_ready.set()

    async def refresh(self) -> None:
        """For who has changed the namespace and wants it to be in force now."""
        self._take_document(await self._store.get(paths.namespace(self.name)))

    def _take_document(self, node: Node | None) -> None:
        seen = self._seen
        if node and seen and node.created_ms == seen.created_ms and node.version < seen.version:
            return  # The other one of the two who read was quicker.
        self._seen = node
        path = paths.namespace(self.name)
        try:
            self.state.set_document(None if node is None or not node.value else decode(path, node.value))
        except MagnetarError as error:
            log.error("a namespace's policies cannot be read", extra={"path": path, "why": str(error)})

    # --- its topics' policies -----------------------------------------------------------------------------------------

    async def wait_applied(self, position: tuple[int, int, int]) -> None:
        """Until the event at this position was taken in. The caller has a timeout."""
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
            if len(self.state.topics):  # It was deleted, and with it what it said.
                self.state.set_topics(TopicDocuments())
            self.topics_ready.set()
            await self._may_have_appeared.wait()

    def _on_appeared(self, _event: WatchEvent) -> None:
        self._may_have_appeared.set()

    async def _read_all(self, reader: EventsReader) -> None:
        """Ends by an error of the reader."""
        try:
            documents = TopicDocuments()
            while batch := await reader.read_available():
                for event in batch:
                    await self._take(event, documents)
            self.state.set_topics(documents)
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
        """Into documents that are being read from the beginning, or into those in force."""
        try:
            change, version = await self._understand(event)
        except (MalformedEntryError, InvalidSchemaError) as error:  # It would be so for ever: the others still count.
            log.error("an event cannot be read", extra={"namespace": str(self.name), "why": str(error)})
            change, version = None, None
        except MagnetarError:
            raise  # Not of the event: all is read again.
        except Exception:  # Clients may publish here, too: whatever they bring, topics of the namespace are loaded.
            log.exception("an event cannot be read", extra={"namespace": str(self.name)})
            change, version = None, None
        if change is not None and documents is not None:
            documents.apply(change, version)
        elif change is not None:
            self.state.apply(change, version)
        partition, ledger, entry = event.position
        self._applied[partition] = max((ledger, entry), self._applied.get(partition, (-1, -1)))

    async def _understand(self, event: IncomingEvent) -> tuple[PolicyChange | None, int | None]:
        if event.payload is None:
            return decode_deletion(event.key), None
        version = None if not event.schema_version else version_from_bytes(event.schema_version)
        return decode_event(event.payload, await self.schema_of(version)), version

    async def schema_of(self, version: int | None) -> Schema:
        """The one an event was written with; ours, if it is not registered."""
        name = self.name.topic(CHANGE_EVENTS).schema_name
        stored = None if version is None else await self._schemas.version(name, version)
        return parsed_event_schema() if stored is None else parsed(stored.schema)

    def _tell_progress(self) -> None:
        self._progress.set()
        self._progress = asyncio.Event()


def _log_if_failed(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.critical("policies are not followed any more", exc_info=task.exception(), extra={"task": task.get_name()})
