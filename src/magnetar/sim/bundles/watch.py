"""Watch: what is seen of a world of bundles, besides what sim/topics/watch.py sees.

Owners:    each creation of a bundle's node begins a generation of its ownership, and the end of the node ends it. They
           are known here at the moment of the change, before any broker hears of it.
Promised:  what the operator was told: the policies that it set, the schemas that it added, the topics that it deleted.
           A request of unknown outcome may take effect, or not, and late.
Read next: invariants.py
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from magnetar.broker.resources import paths
from magnetar.broker.resources.bundles import Bundles, NamespaceBundle
from magnetar.metadata.store import Create, Delete, Put
from magnetar.names import NamespaceName, TopicName
from magnetar.sim.bundles.options import NAMESPACE, BundleOptions
from magnetar.sim.ledgers.watch import Invariant
from magnetar.sim.topics.watch import TopicWatch
from magnetar.sim.world import World
from magnetar.topic.log.managed_ledger import managed_ledger_path

if TYPE_CHECKING:
    from magnetar.sim.bundles.cluster import BundleBroker

SCRATCH: Final = "scratch-"
"""The names of topics that the operator makes and deletes begin so."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One ownership of a bundle, from the creation of its node to its end."""

    bundle: NamespaceBundle
    number: int
    session: int
    owner: str
    """The broker whose session it is."""
    since_s: float

    def __str__(self) -> str:
        return f"ownership {self.number} of {self.bundle.bundle} by {self.owner}"


class BundleInvariant(Invariant):
    """The events of bundles. One that is not overridden costs nothing."""

    watch: BundleWatch

    def on_owner_changed(self, generation: Generation, session: int, by: str, *, is_end: bool) -> None:
        """A bundle's node was deleted, or its value replaced, by a request of this session."""

    def on_claimed(self, broker: str, bundle: NamespaceBundle, session: int) -> None:
        """A broker takes itself for the owner of a bundle, by a node of this session."""

    def on_given_up(self, broker: str, bundle: NamespaceBundle, *, is_served: bool) -> None:
        """A broker ends the topics of a bundle that it has lost or passes on. `is_served`: it serves the bundle at this
        moment, by a later ownership."""

    def on_look_around(self, brokers: Sequence[BundleBroker]) -> None:
        """Again and again, from the outside."""

    def on_settled(self, brokers: Sequence[BundleBroker]) -> None:
        """Everything is healed since some time, and the load is steady."""

    def at_promises(self, brokers: Sequence[BundleBroker]) -> None:
        """Topics were loaded anew, and read."""


@dataclass(slots=True)
class Setting:
    """A policy that the operator has set again and again, each time to another value."""

    confirmed: int | None = None
    """The last one that was answered."""
    unknown: dict[int, None] = field(default_factory=dict)

    def may_be(self, value: int) -> bool:
        return value == self.confirmed or value in self.unknown


@dataclass(slots=True)
class Promised:
    of_namespace: Setting = field(default_factory=Setting)
    of_topics: dict[str, Setting] = field(default_factory=dict)
    schemas: dict[int, str] = field(default_factory=dict)
    """Version → definition."""
    deleted: list[str] = field(default_factory=list)
    """Topics whose deletion was confirmed, and that no other request can have made again."""
    found_schemas: dict[int, str] = field(default_factory=dict)
    """What is there in the end."""
    last_value: int = 0
    last_topic: int = 0


class BundleWatch(TopicWatch):
    def __init__(self, world: World, options: BundleOptions, invariants: Sequence[type[Invariant]]) -> None:
        super().__init__(world, options.world, invariants)
        self.bundle_options = options
        self.owners: dict[NamespaceBundle, Generation] = {}
        """As the metadata has them at this moment."""
        self.claims: dict[tuple[NamespaceBundle, int], None] = {}
        """Bundle and session, of every node that was ever created."""
        self.moves: list[tuple[float, Generation]] = []
        """When a bundle got an owner other than the one before."""
        self.divided = Bundles.equal(1)
        self.scratch: dict[str, None] = {}
        """Topics of the operator that exist at this moment."""
        self.promised = Promised()
        self._last_owner: dict[NamespaceBundle, str] = {}
        self._numbers: dict[NamespaceBundle, int] = {}
        namespace = NamespaceName.parse(NAMESPACE)
        self._namespace = namespace
        self._owner_prefix = f"{paths.OWNERSHIP}/{namespace}/"
        self._policies_path = paths.local_policies(namespace)
        self._scratch_prefix = managed_ledger_path(namespace.topic(SCRATCH).log_name)

    # --- questions ----------------------------------------------------------------------------------------------------

    def bundle_of(self, topic: TopicName) -> NamespaceBundle:
        return NamespaceBundle(self._namespace, self.divided.of(topic))

    def owner_of(self, topic: str) -> Generation | None:
        return self.owners.get(self.bundle_of(TopicName.parse(topic)))

    # --- changes of the metadata --------------------------------------------------------------------------------------

    def on_operation(self, operation: Create | Put | Delete, result: Any, by: str) -> None:
        super().on_operation(operation, result, by)
        path = operation.path
        if path.startswith(self._owner_prefix):
            self._on_owner(NamespaceBundle.parse(path.removeprefix(f"{paths.OWNERSHIP}/")), operation, by)
        elif path == self._policies_path and isinstance(operation, Create | Put):
            self._on_divided(operation.value)
        elif path.startswith(self._scratch_prefix) and path.count("/") == self._scratch_prefix.count("/"):
            self._on_scratch(path.rpartition("/")[2], operation)

    def _on_owner(self, bundle: NamespaceBundle, operation: Create | Put | Delete, by: str) -> None:
        if isinstance(operation, Create):
            self._begin(bundle, by)
            return
        is_end = isinstance(operation, Delete)
        generation = self.owners.pop(bundle) if is_end else self.owners[bundle]
        if is_end:
            self.note(f"{generation} ends")
        self.tell("on_owner_changed", generation, self.author_session, by, is_end=is_end)

    def _begin(self, bundle: NamespaceBundle, by: str) -> None:
        number = self._numbers[bundle] = self._numbers.get(bundle, 0) + 1
        generation = Generation(bundle, number, self.author_session, by, self.now)
        self.owners[bundle] = generation
        self.claims[bundle, self.author_session] = None
        self.note(f"{generation} begins")
        if self._last_owner.get(bundle, by) != by:
            self.counters["bundles that changed their owner"] += 1
        if self._last_owner.get(bundle) != by:
            self.moves.append((self.now, generation))
        self._last_owner[bundle] = by

    def on_session_ended(self, session_id: int, by: str) -> None:
        super().on_session_ended(session_id, by)
        for generation in [each for each in self.owners.values() if each.session == session_id]:
            del self.owners[generation.bundle]
            self.note(f"{generation} ends with its session")
            self.counters["ownerships that ended with their session"] += 1

    def _on_divided(self, value: bytes) -> None:
        if divided := json.loads(value).get("bundles"):
            before, self.divided = self.divided, Bundles.from_json(divided)
            if len(self.divided) > len(before) > 1:
                self.counters["bundles split"] += 1

    def _on_scratch(self, name: str, operation: Create | Put | Delete) -> None:
        if isinstance(operation, Delete):
            self.scratch.pop(name, None)
        else:
            self.scratch[name] = None
