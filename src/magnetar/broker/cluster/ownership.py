"""BundleOwnership: each broker of a cluster owns bundles of topics, each by an ephemeral node.

Purpose:   Lookups read a bundle's node. A bundle without one gets an owner: the leader chooses a broker, lookups are
           directed to that one, and it creates the node.
Order:     To acquire a bundle is one transaction: the namespace is still divided so, and no node exists. A split or a
           merge is one as well. To pass a bundle on, its topics are served no more, the node is marked as disabled, the
           topics are closed, and the node is deleted.
Invariant: `owns` is true only between the creation of the node and its end, as far as this session knows. A broker that
           knows too little does not decide: a new session, or a node that another client deleted, makes the bundle
           unknown until its node was read again (`_verify`). Topics that are loaded stay meanwhile: their logs are
           fenced if another broker serves them.
Failure:   A node of a former session of this broker, or of a killed process with its address, is waited for until it
           vanishes: it is neither adopted nor deleted, since the next owner's node may have the same version. A node
           that an unload could not delete is deleted later. A bundle that another broker has taken is lost: its topics
           are unloaded at once. If nodes cannot be read again within a number of tries, or the policy wants it, the
           broker stops (`wait_failed`).
Limits:    One acquisition of a bundle at a time serves all lookups that wait for it.
Read next: owner_node.py, broker/ownership.py, broker/topics/registry.py; docs/broker.md
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, TypeVar

from magnetar.broker.cluster.membership import Membership
from magnetar.broker.cluster.owner_node import OwnerNode, owner_path
from magnetar.broker.ownership import (
    Acquired,
    BrokerAddress,
    Lost,
    Owner,
    OwnerRecord,
    Ownership,
    OwnershipContext,
    Successor,
)
from magnetar.broker.resources import paths
from magnetar.broker.resources.bundles import Bundle, Bundles, NamespaceBundle
from magnetar.broker.resources.documents import Document, decode, encode
from magnetar.broker.topics.registry import Topics
from magnetar.client.http import HttpClient, json_of, succeeded
from magnetar.errors import (
    BadVersionError,
    MagnetarError,
    MetadataError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    NotAllowedError,
    OutcomeUnknownError,
    ResourceMissingError,
    ServiceNotReadyError,
    SessionExpiredError,
    TransactionFailedError,
)
from magnetar.metadata.compare_and_set import LostRace, try_until_known
from magnetar.metadata.paths import parent_of
from magnetar.metadata.store import (
    Check,
    Create,
    CreateMode,
    Delete,
    MetadataStore,
    Node,
    Operation,
    Put,
    SessionState,
    Watcher,
    WatchEvent,
)
from magnetar.names import TopicName
from magnetar.runtime.backoff import Backoff
from magnetar.runtime.gather import gather_bounded
from magnetar.runtime.keyed_lock import KeyedLock
from magnetar.runtime.uncancelled import UncancelledTasks

log = logging.getLogger(__name__)

T = TypeVar("T")

_TRIES_MAX: Final = 5  # A change of a node is tried this often, with pauses of less than a second in all.
_LOCK_S_MAX: Final = 30.0
_INFORMED_S_MAX: Final = 3.0  # Clients of an unloaded bundle are informed after this time in any case.
_LOOKUP_S_MAX: Final = 2.0
_NAMES_TRIED_MAX: Final = 10_000
_VERIFIED_AT_ONCE_MAX: Final = 100
_ROUNDS_MAX: Final = 12  # Bundles are verified this often: with pauses, half a minute besides the waits for the store.
_RENEWAL_S_MAX: Final = 60.0  # Without a new session for this time, the broker stops: other brokers have its bundles.
_TEMPORARY: Final = (
    MetadataUnavailableError,
    SessionExpiredError,
    OutcomeUnknownError,
    BadVersionError,
    ServiceNotReadyError,
)


class Assigner(Protocol):
    """Decides which broker takes a bundle without an owner."""

    @property
    def is_leader(self) -> bool: ...

    async def leader(self) -> str | None:
        """Returns the leader's broker id, `host:port` of its HTTP side; None if it is unknown."""

    async def choose(self, bundle: NamespaceBundle) -> str:
        """Returns the id of a broker. ServiceNotReadyError if the rules allow none."""

    async def address_of(self, broker_id: str) -> BrokerAddress | None:
        """Returns None if no such broker is alive."""

    def attach(self, host: BundleOwnership, topics: Topics) -> None:
        """Is called before `start` with what it reports and moves, and with the topics that it measures."""

    async def start(self) -> None:
        """Returns when the broker can be chosen."""

    async def withdraw(self) -> None:
        """Returns when the broker is chosen no more. It still answers."""

    async def aclose(self) -> None:
        """Ends it, started or not."""


class _DividedError(ServiceNotReadyError):
    """The namespace does not have the bundle any more."""


@dataclass(slots=True, eq=False)
class _Held:
    bundle: NamespaceBundle
    since_s: float
    session_id: int
    """The session whose node it was when the node was read last."""
    acquired: Acquired
    is_serving: bool = True
    passing_on: asyncio.Task[None] | None = None


class BundleOwnership(Ownership):
    """Made on a loop; ended by `aclose`. `give_up` passes all bundles on before that."""

    def __init__(self, context: OwnershipContext, assigner: Assigner, membership: Membership | None = None) -> None:
        address, resources = context.address, context.resources
        self._assigner = assigner
        self.membership = membership
        self._here = Owner(address, is_here=True)
        self._id = address.broker_id
        self._value = OwnerNode(address).encode()
        self._disabled_value = OwnerNode(address, is_disabled=True).encode()
        self._store: MetadataStore = resources.store
        self._cache = resources.cache
        self._namespaces = resources.namespaces
        self._config = context.config.broker
        self._random = context.runtime.entropy.random
        self._held: dict[NamespaceBundle, _Held] = {}
        self._finding: dict[tuple[NamespaceBundle, bool], asyncio.Task[Owner]] = {}
        self._listeners: dict[Lost, None] = {}
        self._locks = KeyedLock()
        self._tasks = UncancelledTasks(_stopping)
        self._is_leaving = False
        self._unverified: dict[NamespaceBundle, None] = {}
        self._undeleted: dict[NamespaceBundle, None] = {}
        """Bundles that were passed on, except for the end of their nodes."""
        self._renewal: asyncio.TimerHandle | None = None
        """Runs while the session is expired; one that is only disconnected still serves."""
        self._wake = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._failed: asyncio.Future[MagnetarError] = loop.create_future()
        self._verifying = loop.create_task(self._verify_forever(), name="bundle-ownership")
        self._stop_listening = self._store.session.listen(self._on_session)

    # --- what is owned ------------------------------------------------------------------------------------------------

    def owned(self) -> Mapping[NamespaceBundle, float]:
        """Returns the bundles that are served here, with the loop's time since when."""
        return {bundle: held.since_s for bundle, held in self._held.items() if self._is_certain(held)}

    def owns(self, topic: TopicName) -> bool:
        namespace, topic_hash = topic.namespace, topic.bundle_hash
        return any(
            bundle.namespace == namespace and topic_hash in bundle.bundle and self._is_certain(held)
            for bundle, held in self._held.items()
        )

    def _is_certain(self, held: _Held) -> bool:
        session = self._store.session
        return held.is_serving and held.session_id == session.id and session.state is not SessionState.EXPIRED

    def listen(self, lost: Lost) -> Callable[[], None]:
        self._listeners[lost] = None

        def stop() -> None:
            self._listeners.pop(lost, None)

        return stop

    async def wait_failed(self) -> MagnetarError:
        return await asyncio.shield(self._failed)

    # --- lookups ------------------------------------------------------------------------------------------------------

    async def bundle_of(self, topic: TopicName) -> NamespaceBundle:
        bundles = await self._namespaces.bundles(topic.namespace)
        return NamespaceBundle(topic.namespace, bundles.of(topic))

    async def owner_of(self, topic: TopicName, *, is_authoritative: bool = False) -> Owner:
        return await self.owner_of_bundle(await self.bundle_of(topic), is_authoritative=is_authoritative)

    async def owner_of_bundle(self, bundle: NamespaceBundle, *, is_authoritative: bool = False) -> Owner:
        """As `owner_of`. Lookups of one bundle at the same time are one."""
        if (held := self._held.get(bundle)) is not None:
            return self._answer(held)
        key = bundle, is_authoritative
        finding = self._finding.get(key)
        if finding is None:
            finding = self._finding[key] = self._tasks.begin(self._find(*key), name=f"owner of {bundle}")
            finding.add_done_callback(lambda _: self._finding.pop(key))
        return await self._tasks.result_of(finding)

    async def take_up(self, topic: TopicName) -> None:
        bundle = await self.bundle_of(topic)
        if bundle in self._held:
            return
        found = await self._read(bundle)
        if found is not None and found.address.broker_id == self._id:
            await self._wait_former_session_ended(bundle)
            await self.owner_of_bundle(bundle, is_authoritative=True)

    async def _wait_former_session_ended(self, bundle: NamespaceBundle) -> None:
        """Returns when the bundle's node is not one of another session with our id. The caller brings the timeout."""
        path, changed = owner_path(bundle), asyncio.Event()
        while True:
            changed.clear()
            node = await self._store.get(path, watch=lambda _: changed.set())
            if node is None or node.owner == self._store.session.id:
                return
            if OwnerNode.parse(path, node.value).address.broker_id != self._id:
                return
            await changed.wait()

    async def find_owner(self, bundle: NamespaceBundle) -> Owner | None:
        """As `owner_of_bundle`, for a bundle that shall not get an owner by this; None without one."""
        if (held := self._held.get(bundle)) is not None:
            return self._answer(held)
        found = await self._read(bundle)
        return None if found is None or found.address.broker_id == self._id else _elsewhere(bundle, found)

    async def record_of(self, bundle: NamespaceBundle) -> OwnerRecord | None:
        path = owner_path(bundle)
        node = await self._store.get(path)
        if node is None:
            return None
        found = OwnerNode.parse(path, node.value)
        return OwnerRecord(found.address, node.created_ms, found.is_disabled)

    def acquired(self, bundle: NamespaceBundle) -> Acquired | None:
        held = self._held.get(bundle)
        return None if held is None else held.acquired

    def _answer(self, held: _Held) -> Owner:
        if self._is_certain(held):
            return self._here
        why = "whether it still is served here is being checked" if held.is_serving else "it is being unloaded"
        raise ServiceNotReadyError(f"bundle {held.bundle} has no owner at the moment, because {why}: look it up again")

    async def _find(self, bundle: NamespaceBundle, is_authoritative: bool) -> Owner:
        found = await self._read(bundle)
        if found is not None and found.address.broker_id != self._id:
            return _elsewhere(bundle, found)
        if found is not None or is_authoritative:  # A node of our own, which is not held, is taken up or waited for.
            return await self._acquire(bundle, Acquired.CHOSEN if found is None else Acquired.FOUND)
        chosen, is_authoritative = await self._candidate(bundle)
        if chosen == self._id:
            return await self._acquire(bundle, Acquired.CHOSEN_HERE)
        address = await self._assigner.address_of(chosen)
        if address is None:
            raise ServiceNotReadyError(f"broker {chosen}, chosen for bundle {bundle}, has just left: look it up again")
        return Owner(address, is_here=False, is_candidate=True, is_authoritative=is_authoritative)

    async def _read(self, bundle: NamespaceBundle) -> OwnerNode | None:
        path = owner_path(bundle)
        node = await self._cache.get(path)
        return None if node is None else OwnerNode.parse(path, node.value)

    async def _candidate(self, bundle: NamespaceBundle) -> tuple[str, bool]:
        """Returns a broker, and whether it was chosen as the owner; otherwise it is the leader, which chooses. Without
        a leader that is alive, each broker chooses by itself, as in Pulsar."""
        if not self._assigner.is_leader:
            leader = await self._assigner.leader()
            if leader is not None and leader != self._id and await self._assigner.address_of(leader) is not None:
                return leader, False
        return await self._assigner.choose(bundle), True

    # --- acquiring ----------------------------------------------------------------------------------------------------

    async def _acquire(self, bundle: NamespaceBundle, acquired: Acquired) -> Owner:
        async with self._lock(bundle):
            if (held := self._held.get(bundle)) is not None:
                return self._answer(held)
            if self._is_leaving:
                raise _stopping()
            return await self._acquire_alone(bundle, acquired)

    async def _acquire_alone(self, bundle: NamespaceBundle, acquired: Acquired) -> Owner:
        session, path = self._store.session, owner_path(bundle)
        creator = 0

        async def attempt(must_look: bool) -> Node | None:
            nonlocal creator
            if must_look and (found := await self._look(path)) is not None:
                return found
            creator = session.id
            await self._create(bundle)
            return None

        found = await self._change(attempt, lost_race=NodeExistsError)
        self._cache.drop(path)
        if found is not None and found.owner != session.id:
            return self._require_foreign(bundle, OwnerNode.parse(path, found.value))
        if found is None and creator != session.id:
            raise ServiceNotReadyError(f"the session ended while bundle {bundle} was acquired: look it up again")
        if found is not None and found.value != self._value:  # What is left of an unload that failed half-way.
            await self._store.put(path, self._value, found.version)
        self._hold(bundle, creator if found is None else found.owner, acquired)
        log.info("a bundle is owned", extra={"bundle": str(bundle)})
        return self._here

    def _require_foreign(self, bundle: NamespaceBundle, found: OwnerNode) -> Owner:
        if found.address.broker_id == self._id:
            raise ServiceNotReadyError(
                f"bundle {bundle} belongs to a session of this broker that has not ended yet: look it up again"
            )
        return _elsewhere(bundle, found)

    def _hold(self, bundle: NamespaceBundle, session_id: int, acquired: Acquired) -> None:
        self._undeleted.pop(bundle, None)
        self._held[bundle] = _Held(bundle, asyncio.get_running_loop().time(), session_id, acquired)
        self._verify_soon(bundle)  # Which also watches the node.

    async def _create(self, bundle: NamespaceBundle) -> None:
        """Creates the node, if the namespace has this bundle at that moment. NodeExistsError if there is an owner."""
        path = owner_path(bundle)
        for _ in range(_TRIES_MAX):
            document, version = await self._local_policies(bundle)
            if Bundles.from_json(document.get("bundles")).of_hash(bundle.bundle.first) != bundle.bundle:
                raise _DividedError(f"{bundle} is not a bundle any more, because it was divided: look it up again")
            create = Create(path, self._value, CreateMode.EPHEMERAL)
            try:
                await self._transact(Check(paths.local_policies(bundle.namespace), version), create)
            except NoNodeError:
                await self._make_parent(path)
            except BadVersionError:
                continue
            else:
                return
        raise ServiceNotReadyError(f"bundle {bundle} was not acquired: its namespace changes again and again")

    async def _local_policies(self, bundle: NamespaceBundle) -> tuple[Document, int]:
        """Returns them as they are now, with their version. They are made if they are missing."""
        path = paths.local_policies(bundle.namespace)
        await self._namespaces.local_policies(bundle.namespace)
        node = await self._store.get(path)
        if node is None:
            self._cache.drop(path)
            raise ResourceMissingError(f"namespace {bundle.namespace} does not exist: it is being deleted")
        return decode(path, node.value), node.version

    async def _make_parent(self, path: str) -> None:
        try:
            await self._store.create(parent_of(path), make_parents=True)
        except NodeExistsError:
            return

    async def _transact(self, *operations: Operation) -> None:
        try:
            await self._store.transact(operations)
        except TransactionFailedError as error:
            raise error.cause from None

    async def _look(self, path: str, watch: Watcher | None = None) -> Node | None:
        """Returns the node as it is at the time of the call or later."""
        await self._store.sync()
        return await self._store.get(path, watch=watch)

    async def _change(self, attempt: Callable[[bool], Awaitable[T]], lost_race: LostRace = ()) -> T:
        def on_retry(error: MetadataError) -> None:
            log.info("a bundle's node is changed again", extra={"why": str(error)})

        return await try_until_known(attempt, Backoff(self._random), _TRIES_MAX, lost_race=lost_race, on_retry=on_retry)

    def _lock(self, bundle: NamespaceBundle) -> contextlib.AbstractAsyncContextManager[None]:
        late = ServiceNotReadyError(f"bundle {bundle} is being changed for {_LOCK_S_MAX:g} s: look it up again")
        return self._locks.hold(str(bundle), _LOCK_S_MAX, late)

    # --- passing on ---------------------------------------------------------------------------------------------------

    async def unload(self, bundle: NamespaceBundle, destination: str | None = None) -> None:
        """Returns when its topics are closed and its node is deleted, so that any broker can own it. A destination is
        asked to become the owner before clients are informed; any client that looks it up may make another one."""
        held = self._require_held(bundle)
        next_owner = None if destination is None else await self._alive(destination)
        if held.passing_on is None:
            held.is_serving = False
            held.passing_on = self._tasks.begin(self._pass_on(held, next_owner), name=f"unload {bundle}")
        await self._tasks.result_of(held.passing_on)

    def _require_held(self, bundle: NamespaceBundle) -> _Held:
        held = self._held.get(bundle)
        if held is None:
            raise ServiceNotReadyError(f"bundle {bundle} is not served by this broker: look it up again")
        return held

    async def _alive(self, broker_id: str) -> BrokerAddress | None:
        """Returns None for this broker itself."""
        address = await self._assigner.address_of(broker_id)
        if address is None:
            raise NotAllowedError(f"broker {broker_id} is not alive: choose another destination")
        return None if broker_id == self._id else address

    async def _pass_on(self, held: _Held, next_owner: BrokerAddress | None) -> None:
        bundle, path = held.bundle, owner_path(held.bundle)
        loop = asyncio.get_running_loop()
        successor: Successor = loop.create_future()
        late = loop.call_later(_INFORMED_S_MAX, _set_if_pending, successor, None)
        is_begun = False
        try:
            async with self._lock(bundle):
                is_begun = True
                if self._held.get(bundle) is not held:
                    return  # Lost meanwhile: its topics are being unloaded.
                self._undeleted[bundle] = None
                try:
                    await self._disable(path)
                    await self._unload_topics(bundle, successor)
                    await self._delete(path)
                    del self._undeleted[bundle]
                finally:
                    self._held.pop(bundle, None)
                    self._cache.drop(path)
                    self._verify_soon(bundle)
            if next_owner is not None and await self._becomes_owner(next_owner, bundle):
                _set_if_pending(successor, next_owner)
        finally:
            late.cancel()
            _set_if_pending(successor, None)
            if not is_begun:
                held.is_serving, held.passing_on = True, None
        log.info("a bundle was unloaded", extra={"bundle": str(bundle)})

    async def _becomes_owner(self, broker: BrokerAddress, bundle: NamespaceBundle) -> bool:
        """Asks the broker to own the bundle, by a lookup that names it as chosen."""
        topic = _any_topic_in(bundle)
        if topic is None:
            return False
        path = f"/lookup/v2/topic/{topic.domain}/{topic.namespace}/{topic.encoded}"
        try:
            async with HttpClient(broker.http_url, self._random) as http:
                query = {"authoritative": "true"}
                found = json_of(succeeded(await http.request("GET", path, query, timeout_s=_LOOKUP_S_MAX)))
        except MagnetarError as error:
            log.info("a bundle's next owner could not be asked", extra={"bundle": str(bundle), "why": str(error)})
            return False
        return isinstance(found, dict) and found.get("httpUrl") == broker.http_url

    async def _disable(self, path: str) -> None:
        """Makes other brokers refuse lookups, which come too early. It is not needed for the unload."""
        try:
            node = await self._store.get(path)
            if node is not None and node.owner == self._store.session.id:
                await self._store.put(path, self._disabled_value, node.version)
        except MetadataError as error:
            log.info("a bundle's node was not disabled", extra={"path": path, "why": str(error)})

    async def _unload_topics(self, bundle: NamespaceBundle, successor: Successor) -> None:
        for ended in [lost(bundle, successor) for lost in list(self._listeners)]:
            await ended

    async def _delete(self, path: str) -> None:
        async def attempt(_must_look: bool) -> None:
            node = await self._look(path)
            if node is None or node.owner != self._store.session.id:
                return
            try:
                await self._store.delete(path, node.version)
            except NoNodeError:
                return

        await self._change(attempt, lost_race=BadVersionError)

    # --- splitting ----------------------------------------------------------------------------------------------------

    async def split(self, bundle: NamespaceBundle, at: int | None = None) -> None:
        """In one transaction, so that no topic is without an owner at any time. Both halves are owned here."""
        held = self._require_held(bundle)
        at = (bundle.bundle.first + bundle.bundle.last) // 2 if at is None else at
        async with self._lock(bundle):
            if self._held.get(bundle) is not held or not self._is_certain(held):
                raise ServiceNotReadyError(f"bundle {bundle} is being changed: try again")
            session_id = await self._change(partial(self._try_split, bundle, at), lost_race=BadVersionError)
            del self._held[bundle]
            for half in _halves(bundle, at):
                self._hold(half, session_id, Acquired.SPLIT)
                self._cache.drop(owner_path(half))
        self._cache.drop(owner_path(bundle))
        self._cache.drop(paths.local_policies(bundle.namespace))
        log.info("a bundle was split", extra={"bundle": str(bundle)})

    async def _try_split(self, bundle: NamespaceBundle, at: int, must_look: bool) -> int:
        """Returns the session of the halves' nodes."""
        session_id, path = self._store.session.id, owner_path(bundle)
        document, version = await self._local_policies(bundle)
        bundles = Bundles.from_json(document.get("bundles"))
        if must_look and bundles.of_hash(bundle.bundle.first).last == at:
            return session_id  # The earlier attempt was done. Its nodes are verified soon.
        node = await self._look(path)
        if node is None or node.owner != session_id:
            raise ServiceNotReadyError(f"bundle {bundle} is not served by this broker any more: look it up again")
        divided = encode(document | {"bundles": bundles.split(bundle.bundle, at).to_json()})
        await self._transact(
            Put(paths.local_policies(bundle.namespace), divided, version),
            Delete(path, node.version),
            *(Create(owner_path(half), self._value, CreateMode.EPHEMERAL) for half in _halves(bundle, at)),
        )
        return session_id

    # --- merging ------------------------------------------------------------------------------------------------------

    async def merge(self, bundle: NamespaceBundle) -> None:
        """As a split, in one transaction. Both nodes are this broker's, and so is the new one."""
        whole_of = (await self._namespaces.bundles(bundle.namespace)).merge(bundle.bundle).of_hash(bundle.bundle.first)
        following = NamespaceBundle(bundle.namespace, Bundle(bundle.bundle.last, whole_of.last))
        whole, parts = NamespaceBundle(bundle.namespace, whole_of), (bundle, following)
        held = [self._require_held(part) for part in parts]
        async with self._lock(bundle), self._lock(following), self._lock(whole):
            if not all(self._held.get(each.bundle) is each and self._is_certain(each) for each in held):
                raise ServiceNotReadyError(f"bundle {bundle} or the next one is being changed: try again")
            session_id = await self._change(partial(self._try_merge, whole, parts), lost_race=BadVersionError)
            for part in parts:
                del self._held[part]
            self._hold(whole, session_id, Acquired.MERGED)
        for each in (*parts, whole):
            self._cache.drop(owner_path(each))
        self._cache.drop(paths.local_policies(bundle.namespace))
        log.info("bundles were merged", extra={"bundle": str(whole)})

    async def _try_merge(
        self, whole: NamespaceBundle, parts: tuple[NamespaceBundle, NamespaceBundle], must_look: bool
    ) -> int:
        """Returns the session of the new node."""
        session_id = self._store.session.id
        document, version = await self._local_policies(whole)
        bundles = Bundles.from_json(document.get("bundles"))
        if must_look and bundles.of_hash(whole.bundle.first) == whole.bundle:
            return session_id  # The earlier attempt was done. Its node is verified soon.
        deletes = []
        for part in parts:
            node = await self._look(owner_path(part))
            if node is None or node.owner != session_id:
                raise ServiceNotReadyError(f"bundle {part} is not served by this broker any more: look it up again")
            deletes.append(Delete(owner_path(part), node.version))
        merged = encode(document | {"bundles": bundles.merge(parts[0].bundle).to_json()})
        await self._transact(
            Put(paths.local_policies(whole.namespace), merged, version),
            *deletes,
            Create(owner_path(whole), self._value, CreateMode.EPHEMERAL),
        )
        return session_id

    # --- the broker's life --------------------------------------------------------------------------------------------

    async def start(self, topics: Topics) -> None:
        self._assigner.attach(self, topics)
        await self._assigner.start()

    async def give_up(self) -> None:
        """Passes all bundles on, one by one: while one moves, the topics of the others are served."""
        self._is_leaving = True
        await self._assigner.withdraw()
        for bundle in list(self._held):
            if not self._store.session.state.is_usable:
                log.warning("bundles are not passed on, because the metadata store cannot be reached")
                return  # The nodes end with the session, and the topics with the broker.
            try:
                await self.unload(bundle)
            except MagnetarError as error:
                log.warning("a bundle was not unloaded in order", extra={"bundle": str(bundle), "why": str(error)})

    async def aclose(self) -> None:
        self._is_leaving = True
        self._stop_listening()
        if self._renewal is not None:
            self._renewal.cancel()
        self._verifying.cancel()
        await asyncio.wait([self._verifying])
        await self._tasks.give_up()
        await self._assigner.aclose()

    # --- sessions, and nodes that other clients change ----------------------------------------------------------------

    def _on_session(self, state: SessionState) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
            self._renewal = None
        if state is SessionState.EXPIRED and self._config.session_expired_policy == "shutdown":
            self._fail(
                SessionExpiredError(
                    "the session with the metadata store has expired, and broker.session_expired_policy is shutdown"
                )
            )
        elif state is SessionState.EXPIRED:
            log.warning("the session has expired: bundles are acquired again", extra={"bundles": len(self._held)})
            self._unverified.update(dict.fromkeys(self._held))
            self._wake.set()
            self._renewal = asyncio.get_running_loop().call_later(_RENEWAL_S_MAX, self._on_no_renewal)

    def _on_no_renewal(self) -> None:
        self._fail(SessionExpiredError(f"the metadata store gave no new session within {_RENEWAL_S_MAX:g} s"))

    def _fail(self, error: MagnetarError) -> None:
        """Gives everything up at once. The process is to end."""
        self._is_leaving = True
        for held in list(self._held.values()):
            self._lose(held, str(error))
        if not self._failed.done():
            self._failed.set_result(error)

    def _lose(self, held: _Held, why: str) -> None:
        held.is_serving = False
        if self._held.get(held.bundle) is held:
            del self._held[held.bundle]
            self._cache.drop(owner_path(held.bundle))
            log.warning("a bundle was lost", extra={"bundle": str(held.bundle), "why": why})
            for lost in list(self._listeners):
                lost(held.bundle, None)

    def _verify_soon(self, bundle: NamespaceBundle, _event: WatchEvent | None = None) -> None:
        self._unverified[bundle] = None
        self._wake.set()

    async def _verify_forever(self) -> None:
        backoff, failures = Backoff(self._random), 0
        while True:
            await self._wake.wait()
            self._wake.clear()
            if await self._store.session.wait_usable_or_closed() is SessionState.CLOSED:  # `_renewal` is the limit.
                return
            bundles, self._unverified = list(self._unverified), {}
            try:
                await gather_bounded([partial(self._verify, each) for each in bundles], _VERIFIED_AT_ONCE_MAX)
            except _TEMPORARY as error:
                failures += 1
                if failures >= _ROUNDS_MAX:
                    self._fail(error)
                    return
                log.info("bundles are verified again", extra={"why": str(error)})
                await asyncio.sleep(backoff.next_s())
                self._unverified.update(dict.fromkeys(bundles))
                self._wake.set()
            except MagnetarError as error:
                self._fail(error)
                return
            except Exception as error:
                log.exception("bundles could not be verified")
                self._fail(ServiceNotReadyError(f"bundles could not be verified: {error!r}"))
                return
            else:
                failures = 0
                backoff.reset()

    async def _verify(self, bundle: NamespaceBundle) -> None:
        """Makes sure that the bundle's node exists and is ours, and watches it; otherwise the bundle is lost. The node
        of a bundle that was passed on is deleted, if that has failed before."""
        held = self._held.get(bundle)
        if held is None and bundle in self._undeleted:
            await self._delete_late(bundle)
        if held is None or not held.is_serving:
            return
        async with self._lock(bundle):
            while self._held.get(bundle) is held and held.is_serving:
                if await self._is_ours(held):
                    return

    async def _delete_late(self, bundle: NamespaceBundle) -> None:
        """Until then, other brokers would refuse all lookups of the bundle."""
        async with self._lock(bundle):
            if bundle not in self._held and bundle in self._undeleted:  # No lookup has taken it up meanwhile.
                await self._delete(owner_path(bundle))
                del self._undeleted[bundle]
                self._cache.drop(owner_path(bundle))

    async def _is_ours(self, held: _Held) -> bool:
        """Returns False if it must be looked at again."""
        bundle, path, session = held.bundle, owner_path(held.bundle), self._store.session
        changed = asyncio.Event()

        def on_event(event: WatchEvent) -> None:
            changed.set()
            self._verify_soon(bundle, event)

        node = await self._look(path, on_event)
        if node is None:
            await self._create_again(held)
            return False
        held.session_id = node.owner
        if node.owner == session.id:
            return True
        found = OwnerNode.parse(path, node.value)
        if found.address.broker_id != self._id:
            self._lose(held, f"broker {found.address.broker_id} owns it now")
            return True
        limit_s = 2 * session.timeout_ms / 1000
        try:
            async with asyncio.timeout(limit_s):
                await changed.wait()
        except TimeoutError:
            raise ServiceNotReadyError(
                f"the node of bundle {bundle} belongs to a former session, which has not ended within {limit_s:g} s"
            ) from None
        return False

    async def _create_again(self, held: _Held) -> None:
        """Its session has ended, or another client has deleted it."""
        try:
            await self._require_namespace(held.bundle)
            await self._create(held.bundle)
            held.acquired = Acquired.AGAIN
        except NodeExistsError:
            return  # The next look shows whose it is.
        except (ResourceMissingError, _DividedError) as error:
            self._lose(held, str(error))

    async def _require_namespace(self, bundle: NamespaceBundle) -> None:
        policies = await self._namespaces.policies(bundle.namespace)
        if policies.get("deleted") is True:
            raise ResourceMissingError(f"namespace {bundle.namespace} is being deleted")


def _set_if_pending(successor: Successor, address: BrokerAddress | None) -> None:
    if not successor.done():
        successor.set_result(address)


def _any_topic_in(bundle: NamespaceBundle) -> TopicName | None:
    """Returns a name that no topic needs to have: a lookup needs one. None if none was found by trying."""
    names = (bundle.namespace.topic(f"lookup-{number}") for number in range(_NAMES_TRIED_MAX))
    return next((name for name in names if name in bundle), None)


def _halves(bundle: NamespaceBundle, at: int) -> list[NamespaceBundle]:
    whole = bundle.bundle
    return [NamespaceBundle(bundle.namespace, half) for half in (Bundle(whole.first, at), Bundle(at, whole.last))]


def _elsewhere(bundle: NamespaceBundle, found: OwnerNode) -> Owner:
    if found.is_disabled:
        raise ServiceNotReadyError(f"bundle {bundle} is being unloaded by its owner: look it up again")
    return Owner(found.address, is_here=False)


def _stopping() -> ServiceNotReadyError:
    return ServiceNotReadyError("the broker is stopping: look the topic up again")
