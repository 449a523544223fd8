"""Every invariant of bundles, one class each; the ids are those of docs/simulation.md. Those of topics hold as well.

Owners:    what brokers do to the nodes of bundles, and what they take themselves for: T3. How soon they let go: T6.
Admin:     what an operator was told stays true: T7. Delayed messages are not early: T8.
Rest:      when nothing breaks any more, every bundle has one owner, there is a leader, and bundles stay where they are:
           V9.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from magnetar.broker.broker import Broker
from magnetar.broker.resources.bundles import NamespaceBundle
from magnetar.client import Message
from magnetar.names import TopicName
from magnetar.sim.bundles.cluster import BundleBroker
from magnetar.sim.bundles.watch import BundleInvariant, BundleWatch, Generation
from magnetar.sim.ledgers.watch import Invariant
from magnetar.sim.topics import invariants as topics
from magnetar.sim.topics.options import KEY_SHARED
from magnetar.sim.topics.watch import Progress, TopicInvariant

# --- owners -----------------------------------------------------------------------------------------------------------


class Generations(BundleInvariant):
    """T3: a broker ends an ownership by itself only if it is the one that it began, in the same session; it takes
    itself for an owner only by a node that its session has made; and what it ends is never what it serves again."""

    id = "T3"

    def on_owner_changed(self, generation: Generation, session: int, by: str, *, is_end: bool) -> None:
        if session != generation.session:
            what = "ends" if is_end else "changes"
            self.violated(f"{by} {what} {generation}, by another session than the one that began it")

    def on_claimed(self, broker: str, bundle: NamespaceBundle, session: int) -> None:
        if (bundle, session) not in self.watch.claims:
            self.violated(f"{broker} takes itself for the owner of {bundle.bundle}, and its session has made no node")

    def on_given_up(self, broker: str, bundle: NamespaceBundle, *, is_served: bool) -> None:
        if is_served:
            self.violated(f"{broker} ends the topics of {bundle.bundle} for an earlier ownership, and serves it again")


LOST_LIMIT_S: Final = 1.0
"""Within this time a broker stops to serve what another one owns, once it can know."""


class LostIsUnloaded(BundleInvariant):
    """T6: a topic of a bundle that another broker owns is served no more within a second in which its broker runs, and
    reaches the metadata without a loss or a delay."""

    id = "T6"

    def __init__(self, watch: BundleWatch) -> None:
        super().__init__(watch)
        self._since: dict[tuple[Broker, str], float] = {}

    def on_look_around(self, brokers: Sequence[BundleBroker]) -> None:
        since, self._since = self._since, {}
        for node in brokers:
            for topic in self._foreign(node):
                assert node.broker is not None
                key = node.broker, topic
                self._since[key] = since.get(key, self.watch.now)
                if self.watch.now - self._since[key] > LOST_LIMIT_S:
                    self._since[key] = float("inf")  # Said once.
                    self.violated(f"{node.name} still serves {topic}, which has had another owner for {LOST_LIMIT_S} s")

    def _foreign(self, node: BundleBroker) -> Iterator[str]:
        """Topics that it serves, and of which it could know that another broker owns them."""
        if node.broker is None or not _could_know(node):
            return
        for topic in node.broker.service.topics.loaded_persistent():
            generation = self.watch.owners.get(self.watch.bundle_of(topic.name))
            if generation is not None and generation.owner != node.name:
                yield str(topic.name)


def _could_know(node: BundleBroker) -> bool:
    """Whether it runs, and reaches a metadata store that is well."""
    metadata = node.metadata
    process = metadata.watch.world.process(node.name)
    if process is None or process.is_paused or metadata.loss_rate or metadata.slow_s:
        return False
    return all(store.session.state.is_usable for store in metadata.stores_of(process))


# --- what clients and operators were told -----------------------------------------------------------------------------


class Promises(BundleInvariant):
    """T7: a policy that was set is in force at every broker, a schema that was added has its version, and a topic that
    was deleted does not exist; whichever broker was asked, and whoever owns the topic now."""

    id = "T7"

    def at_promises(self, brokers: Sequence[BundleBroker]) -> None:
        for node in brokers:
            if node.broker is not None:
                self._check_policies(node.name, node.broker)
        promised = self.watch.promised
        for version, definition in promised.schemas.items():
            found = promised.found_schemas.get(version)
            if found != definition:
                self.violated(f"schema version {version} was {definition!r}, and is {found!r}")
        for topic in promised.deleted:
            if topic in self.watch.scratch:
                self.violated(f"{topic} was deleted, and exists")

    def _check_policies(self, name: str, broker: Broker) -> None:
        promised = self.watch.promised
        for topic in broker.service.topics.loaded_persistent():
            value, own = topic.policies.message_ttl_s, promised.of_topics.get(str(topic.name))
            if topic.name.is_system:
                continue
            may_be_own = own is not None and own.may_be(value)
            is_own = own is not None and own.confirmed is not None
            is_default = promised.of_namespace.confirmed is None and not value
            if not may_be_own and (is_own or not (promised.of_namespace.may_be(value) or is_default)):
                self.violated(f"{name} applies a time to live of {value} s to {topic.name}; {promised}")


class NotEarly(TopicInvariant):
    """T8: a delayed message is delivered by Shared and Key_Shared subscriptions not before its time, but for a tick."""

    id = "T8"

    def on_received(self, progress: Progress, consumer: str, message: Message) -> None:
        if progress.name == KEY_SHARED:
            self.watch.counters["received by Key_Shared"] += 1
        if progress.name not in ("shared", KEY_SHARED):
            return
        due_s = self.told.sends[progress.topic, message.producer_name].due_s.get(message.sequence_id)
        tick_s = self.watch.topic_options.dispatch["delayed_tick_ms"] / 1000
        if due_s is None:
            return
        self.watch.counters["delayed messages received"] += 1
        if self.watch.now < due_s - tick_s - _MILLISECOND_S:
            self.violated(f"{consumer} got {message.payload.decode()} {due_s - self.watch.now:.3f} s too early")


_MILLISECOND_S: Final = 0.001


# --- rest -------------------------------------------------------------------------------------------------------------


SETTLED_S: Final = 15.0
"""In a healed world with a steady load, bundles stop moving within this time …"""
QUIET_S: Final = 5.0
"""… and then do not move for this time, in which the leader decides five times."""


def leaders(brokers: Iterable[BundleBroker]) -> list[str]:
    """Brokers that take themselves for the leader."""
    return [node.name for node in brokers if node.manager is not None and node.manager.is_leader]


class ComesToRest(BundleInvariant):
    """V9: when nothing breaks any more, there is a leader, every bundle that clients use has one owner, which serves
    it, and bundles stay where they are."""

    id = "V9"

    def on_settled(self, brokers: Sequence[BundleBroker]) -> None:
        self._check_leader(brokers)
        late = [generation for when, generation in self.watch.moves if when > self.watch.now - QUIET_S]
        if late and self.watch.bundle_options.balances:
            self.violated(f"bundles move after {SETTLED_S:g} s: {', '.join(map(str, late))}")
        for topic in self.watch.topic_options.topic_names:
            self._check_owner(TopicName.parse(topic), brokers)
        owned = sorted((each.bundle.bundle for each in self.watch.owners.values()), key=lambda bundle: bundle.first)
        for one, other in pairwise(owned):
            if other.first < one.last:
                self.violated(f"{one} and {other} both have an owner")

    def _check_leader(self, brokers: Sequence[BundleBroker]) -> None:
        found = leaders(brokers)
        if len(found) != 1:
            self.violated(f"the leaders are {found}")

    def _check_owner(self, topic: TopicName, brokers: Sequence[BundleBroker]) -> None:
        generation = self.watch.owner_of(str(topic))
        owners = [node.name for node in brokers if node.ownership is not None and node.ownership.owns(topic)]
        if generation is None or owners != [generation.owner]:
            self.violated(f"{topic} is owned by {generation}, and {owners} take themselves for its owners")


# --- all of them ------------------------------------------------------------------------------------------------------

ALL: tuple[type[Invariant], ...] = (*topics.ALL, Generations, LostIsUnloaded, Promises, NotEarly, ComesToRest)
