"""LoadManager: reports the load of this broker; as the leader it assigns, moves, splits and merges bundles.

Purpose:   `choose` answers the lookups for a bundle without an owner. In its rounds the leader compares the loads of
           all brokers, and has bundles moved, split and merged by their owners. placement.py decides, and this module
           does.
Order:     It starts so: register → take part in the election. It ends in the opposite order, and `withdraw` does that
           before the bundles are handed over, so that none of them comes back.
Invariant: A bundle that was promised to a broker is promised to the same one, until the broker reports it or the time
           is up. So concurrent lookups have one answer, and many bundles at once do not all go to the calmest broker.
           A move is a promise to its destination.
Failure:   A failed command changes nothing that matters: the next round decides anew, from the reports. A broker that
           does not report is left as it is. A leader that is replaced forgets what it knows.
Read next: placement.py, members.py, leader.py, bundle_data.py
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

from magnetar.broker.cluster.bundle_data import BundleData
from magnetar.broker.cluster.commands import BrokerCommands
from magnetar.broker.cluster.decisions import Decision, Decisions, Why
from magnetar.broker.cluster.leader import LeaderBroker, Leadership
from magnetar.broker.cluster.load_report import OWN_VERSION, BrokerReport, BundleStats, Usage
from magnetar.broker.cluster.members import Members
from magnetar.broker.cluster.placement import (
    BalanceLimits,
    Balancer,
    BrokerLoad,
    BundleLoad,
    Change,
    Merge,
    Move,
    Split,
    choose,
    misplaced,
)
from magnetar.broker.cluster.rules import IsolationRules
from magnetar.broker.cluster.traffic import TopicTraffic
from magnetar.broker.front_end import PULSAR
from magnetar.broker.ownership import BrokerAddress
from magnetar.broker.resources.bundles import Bundles, NamespaceBundle
from magnetar.broker.resources.resources import Resources
from magnetar.broker.topics.registry import Topics
from magnetar.config.balance import BalanceConfig
from magnetar.config.root import Config
from magnetar.errors import (
    InvalidNameError,
    MagnetarError,
    MalformedMetadataError,
    NotAllowedError,
    ResourceMissingError,
    ServiceNotReadyError,
)
from magnetar.names import NamespaceName
from magnetar.runtime.runtime import Entropy
from magnetar.runtime.slices import Slices
from magnetar.words import counted

log = logging.getLogger(__name__)

_PROMISE_S: Final = 60.0
"""A promised bundle counts as a part of its broker's load for at most this long. Until then the broker has acquired and
reported it; if not, no client has looked it up again."""
_PROMISES_SEEN_S: Final = 1.0
"""Promises are looked through at most this often while many bundles are looked up."""
_NAMES_KEPT: Final = 50_000
"""Names of bundles that are not parsed again with each report."""
_REPORTED_MAX: Final = 2_000
"""Bundles in a report, the busiest first: more than some 3,000 would not fit into a node of ZooKeeper, which has 1 MB.
The leader does not balance the others; they are served anyway."""
_LEFT_MAX: Final = 10_000
"""Bundles of brokers that have left, until they have a new owner. Beyond this, the explanation of the next owner is
shorter."""
_SEEN_MS_MAX: Final = 2_000
"""Both nodes of a broker that ended were seen to be deleted within this time."""
_MINUTE_S: Final = 60
_MEGABYTE: Final = 2**20
_SHARE: Final = 0.01
_HEARTBEATS: Final = "pulsar"
"""The tenant of the namespaces `pulsar/{broker id}`, in which Pulsar's brokers check their health."""
_MONITORS: Final = "sla-monitor"


class BundleHost(Protocol):
    """What the load manager needs of this broker's ownership."""

    def owned(self) -> Mapping[NamespaceBundle, float]:
        """Returns the bundles that this broker owns, with the loop's time since when."""

    async def unload(self, bundle: NamespaceBundle, destination: str | None = None) -> None:
        """Returns when the broker does not own the bundle any more."""

    async def split(self, bundle: NamespaceBundle) -> None:
        """Returns when the bundle is divided in two."""

    async def merge(self, bundle: NamespaceBundle) -> None:
        """Returns when the bundle and the next one of its namespace are one."""


class Traffic(Protocol):
    """Measures this broker's bundles."""

    async def measure(self, bundles: Iterable[NamespaceBundle]) -> Mapping[NamespaceBundle, BundleStats]:
        """Returns the traffic of each of the bundles since the call before."""


@dataclass(frozen=True, slots=True)
class _Promise:
    broker: str
    made_s: float
    load: BundleLoad


@dataclass(frozen=True, slots=True)
class _Known:
    """The load of a broker, as it follows from its report and the averages of this version."""

    report: BrokerReport
    version: int
    load: BrokerLoad


class LoadManager:
    """Begun by `attach` and `start`, ended by `aclose`. Does not own the store."""

    def __init__(
        self,
        resources: Resources,
        config: Config,
        entropy: Entropy,
        address: BrokerAddress,
        commands: BrokerCommands,
        usage: Callable[[], Usage],
        make_traffic: Callable[[Topics, Slices], Traffic] = TopicTraffic,
    ) -> None:
        store = resources.store
        timeout_s = config.metadata.operation_timeout_ms / 1000
        own = BrokerReport(
            address=address, version=OWN_VERSION, started_ms=entropy.wall_ms(), updated_ms=entropy.wall_ms()
        )
        self.members = Members(store, own, entropy.random, timeout_s=timeout_s)
        self.members.on_left = self._on_left
        self._leadership = Leadership(store, address, entropy.random, timeout_s=timeout_s)
        self._address = address
        self._config: BalanceConfig = config.balance
        self._entropy = entropy
        self._commands = commands
        self._usage = usage
        self._make_traffic = make_traffic
        self._slices = resources.slices
        self._namespaces = resources.namespaces
        self._rules = IsolationRules(resources, config.broker.cluster)
        self._data = BundleData(store, resources.slices)
        self._balancer = Balancer(limits_of(self._config))
        self._promises: dict[NamespaceBundle, _Promise] = {}
        self._promises_seen_s = 0.0
        self._decisions = Decisions()
        self._known: dict[str, _Known] = {}
        self._left: dict[NamespaceBundle, str] = {}
        self._host: BundleHost | None = None
        self._traffic: Traffic | None = None
        self._reported_s = 0.0
        self._tasks: list[asyncio.Task[None]] = []

    def attach(self, host: BundleHost, topics: Topics) -> None:
        """Completes the load manager, before `start`: ownership and topics need the load manager to be made."""
        self._host, self._traffic = host, self._make_traffic(topics, self._slices)

    async def start(self) -> None:
        """Returns when other brokers know this one, and may send it clients."""
        assert self._host is not None
        await self.members.start()
        loop = asyncio.get_running_loop()
        self._reported_s = loop.time()
        await self._leadership.start()
        await self._leadership.leader()
        self._tasks = [
            loop.create_task(self._repeat(self._config.report_interval_s, self.report), name="load-report"),
            loop.create_task(self._repeat(self._config.report_interval_s, self.lead), name="load-samples"),
            loop.create_task(self._repeat(self._config.round_interval_s, self._round_if_leader), name="load-rounds"),
            loop.create_task(
                self._repeat(self._config.bundle_data_interval_minutes * _MINUTE_S, self._write), name="bundle-data"
            ),
        ]

    async def withdraw(self) -> None:
        """Gives up the lead, and is chosen for no bundle any more. It still answers lookups."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._tasks = []
        await self._leadership.aclose()
        await self.members.withdraw()

    async def aclose(self) -> None:
        await self.withdraw()
        await self.members.aclose()

    async def _repeat(self, interval_s: float, work: Callable[[], Awaitable[object]]) -> None:
        while True:
            await asyncio.sleep(interval_s)
            try:
                await work()
            except MagnetarError as error:
                log.warning("a step of the load manager failed", extra={"why": str(error)})
            except Exception:
                log.exception("a step of the load manager failed unexpectedly")

    # --- the other brokers --------------------------------------------------------------------------------------------

    @property
    def is_leader(self) -> bool:
        return self._leadership.is_leader

    async def leading(self) -> LeaderBroker | None:
        """Returns the leader; None if no broker was elected in time."""
        return await self._leadership.leader()

    async def leader(self) -> str | None:
        found = await self.leading()
        return None if found is None else found.broker_id

    async def alive(self) -> list[str]:
        return sorted(self.members.brokers)

    async def address_of(self, broker_id: str) -> BrokerAddress | None:
        return self.members.address_of(broker_id)

    def reports(self) -> Mapping[str, BrokerReport]:
        return self.members.brokers

    def decision_on(self, bundle: NamespaceBundle) -> Decision | None:
        return self._decisions.on(bundle)

    # --- choosing a broker --------------------------------------------------------------------------------------------

    async def choose(self, bundle: NamespaceBundle) -> str:
        """Returns the broker that is to own the bundle. ServiceNotReadyError if the rules allow none that is alive."""
        allowed = await self._allowed_for(bundle)
        if asyncio.get_running_loop().time() - self._promises_seen_s > _PROMISES_SEEN_S:
            self._drop_promises()
        promise = self._promises.get(bundle)
        if promise is not None and promise.broker in allowed:
            return promise.broker
        loads = {broker: self._load_of(broker, report) for broker, report in self.members.brokers.items()}
        chosen = choose(allowed, loads, self._promised(), self._entropy.random)
        if chosen is None:
            raise ServiceNotReadyError(
                f"no broker that is alive may serve bundle {bundle}: start more brokers, or see the isolation policies "
                "of the cluster"
            )
        self.remember(bundle, chosen)
        self._note(bundle, chosen, *self._why(bundle, allowed))
        return chosen

    def _why(self, bundle: NamespaceBundle, allowed: list[str]) -> tuple[Why, str]:
        if _is_dedicated(bundle.namespace):
            return Why.DEDICATED, "the namespace is the broker's own"
        count, of_all = len(allowed), len(self._candidates())
        why, text = Why.LOAD, f"none of {counted(count, 'broker')} had less load" if count > 1 else "no other was alive"
        if count < of_all:
            rest = ", and none of them had less load" if count > 1 else ""
            why, text = Why.RULES, f"isolation policies and anti-affinity groups left {count} of {of_all} brokers{rest}"
        former = self._left.pop(bundle, None)
        if former is not None:
            return Why.TAKEN_OVER, _taken_over(former, text)
        return why, text

    def _note(self, bundle: NamespaceBundle, broker: str, why: Why, text: str) -> None:
        self._decisions.note(bundle, Decision(broker, self._entropy.wall_ms(), why, text))

    def remember(self, bundle: NamespaceBundle, destination: str) -> None:
        """Makes the next choice for the bundle this broker, if the rules allow it."""
        now_s = asyncio.get_running_loop().time()
        self._promises[bundle] = _Promise(destination, now_s, self._data.load(str(bundle)))

    async def _allowed_for(self, bundle: NamespaceBundle) -> list[str]:
        namespace, candidates = bundle.namespace, self._candidates()
        if dedicated := _dedicated_to(namespace):
            return [broker for broker in candidates if broker == dedicated]
        if not await self._rules.has_group(namespace):
            return (await self._rules.read(())).candidates(str(namespace), candidates, {})
        serves = self._serves(bundle)
        served = {each for names in serves.values() for each in names}
        rules = await self._rules.read([namespace, *sorted(map(NamespaceName.parse, served))])
        return rules.candidates(str(namespace), candidates, serves)

    def _candidates(self) -> list[str]:
        """Returns the brokers that can serve clients of Pulsar, and that agree on owners as we do. Those that are
        being drained are left out, if there are others."""
        found = {
            broker: report.is_draining
            for broker, report in self.members.brokers.items()
            if report.is_modular and report.address.urls.get(PULSAR) and report.address.http_url
        }
        return sorted(broker for broker, is_draining in found.items() if not is_draining) or sorted(found)

    def _serves(self, besides: NamespaceBundle | None = None) -> dict[str, set[str]]:
        """Returns the namespaces of which each broker has a bundle, or was promised one."""
        found = {
            broker: {str(bundle.namespace) for bundle in self._load_of(broker, report).bundles if bundle != besides}
            for broker, report in self.members.brokers.items()
        }
        for bundle, promise in self._promises.items():
            if bundle != besides and promise.broker in found:
                found[promise.broker].add(str(bundle.namespace))
        return found

    def _promised(self) -> dict[str, BrokerLoad]:
        bundles: dict[str, dict[NamespaceBundle, BundleLoad]] = {}
        for bundle, promise in self._promises.items():
            bundles.setdefault(promise.broker, {})[bundle] = promise.load
        return {broker: BrokerLoad(0.0, loads) for broker, loads in bundles.items()}

    def _drop_promises(self) -> None:
        now_s = self._promises_seen_s = asyncio.get_running_loop().time()

        def is_open(bundle: NamespaceBundle, promise: _Promise) -> bool:
            report = self.members.brokers.get(promise.broker)
            if report is None or now_s - promise.made_s > _PROMISE_S:
                return False
            is_reported = str(bundle) in report.bundles
            return not is_reported or self.members.silent_s(promise.broker) > now_s - promise.made_s

        self._promises = {bundle: each for bundle, each in self._promises.items() if is_open(bundle, each)}
        self._known = {broker: each for broker, each in self._known.items() if broker in self.members.brokers}

    def _on_left(self, broker: str, report: BrokerReport) -> None:
        """Remembers which bundles a broker had that has left, to explain who gets them. The owner's node and the
        broker's end together, and a lookup may come before both are seen: its choice is explained afterwards."""
        now_ms = self._entropy.wall_ms()
        for bundle in filter(None, map(_parse, report.bundles)):
            made = self._decisions.on(bundle)
            if made is not None and made.broker != broker and now_ms - made.made_ms <= _SEEN_MS_MAX:
                if made.why in (Why.LOAD, Why.RULES):
                    taken = dataclasses.replace(made, why=Why.TAKEN_OVER, text=_taken_over(broker, made.text))
                    self._decisions.note(bundle, taken)
            elif len(self._left) < _LEFT_MAX:
                self._left[bundle] = broker

    # --- loads --------------------------------------------------------------------------------------------------------

    def _load_of(self, broker: str, report: BrokerReport) -> BrokerLoad:
        """Returns the load as reported. It is kept, because a broker that dies makes many lookups at once."""
        known = self._known.get(broker)
        if known is None or known.report is not report or known.version != self._data.version:
            bundles = {
                bundle: self._data.load(name, stats)
                for name, stats in report.bundles.items()
                if (bundle := _parse(name)) is not None
            }
            known = _Known(report, self._data.version, BrokerLoad(report.usage.busiest, bundles))
            self._known[broker] = known
            for bundle in bundles if self._left else ():
                self._left.pop(bundle, None)  # It has an owner.
        return known.load

    def _loads(self, reports: Mapping[str, BrokerReport]) -> dict[str, BrokerLoad]:
        """Returns the loads as they will be when all promises are kept."""
        promised = self._promised()

        def load_of(broker: str, report: BrokerReport) -> BrokerLoad:
            reported = self._load_of(broker, report).bundles
            here = {
                bundle: load
                for bundle, load in reported.items()
                if (promise := self._promises.get(bundle)) is None or promise.broker == broker
            }
            coming = promised[broker].bundles if broker in promised else {}
            return BrokerLoad(report.usage.busiest, {**coming, **here})

        return {broker: load_of(broker, report) for broker, report in reports.items()}

    async def report(self) -> None:
        """Measures this broker, and publishes the result if it has changed enough."""
        assert self._host is not None
        assert self._traffic is not None
        measured = await self._traffic.measure(self._host.owned())
        last, now_s = self.members.own, asyncio.get_running_loop().time()
        busiest = sorted(measured.items(), key=lambda item: (-item[1].messages - item[1].bytes, str(item[0])))
        bundles = {str(bundle): stats for bundle, stats in busiest[:_REPORTED_MAX]}
        report = dataclasses.replace(
            last,
            usage=self._usage(),
            bundles=bundles,
            gained=tuple(bundle for bundle in bundles if bundle not in last.bundles),
            lost=tuple(bundle for bundle in last.bundles if bundle not in bundles),
            updated_ms=self._entropy.wall_ms(),
        )
        is_due = now_s - self._reported_s >= self._config.report_max_interval_minutes * _MINUTE_S
        is_other = bool(report.gained or report.lost)
        if is_due or is_other or report.differs_by(last) > self._config.report_change_percent * _SHARE:
            self._reported_s = now_s
            self.members.publish(report)

    def drain(self, *, is_draining: bool) -> None:
        """The others know it a moment later. A new session publishes it again; a new process does not."""
        self.members.publish(dataclasses.replace(self.members.own, is_draining=is_draining))

    # --- as the leader ------------------------------------------------------------------------------------------------

    async def lead(self) -> None:
        """Adds a sample of each bundle to the averages, while this broker leads."""
        self._drop_promises()
        if self.is_leader:
            await self._data.sample(self.members.brokers, asyncio.get_running_loop().time())
        elif len(self._data):
            self._data.clear()
            self._balancer = Balancer(limits_of(self._config))

    async def _write(self) -> None:
        if self.is_leader:
            await self._data.write(self.members.brokers)

    async def _round_if_leader(self) -> None:
        if self.is_leader:
            await self.balance()

    async def balance(self) -> list[Change]:
        """Makes one round, and returns what was changed."""
        self._drop_promises()
        reports = self._fresh_reports()
        loads = self._loads(reports)
        divided = await self._divisions(loads)
        loads = {broker: _without_unknown(load, divided) for broker, load in loads.items()}
        rules = await self._rules.read(divided)
        serves, candidates = self._serves(), [broker for broker in self._candidates() if broker in reports]

        def allowed(bundle: NamespaceBundle) -> list[str]:
            return rules.candidates(str(bundle.namespace), candidates, serves)

        at_first = await self._divisions_at_first(divided) if self._config.merging else {}

        def counts(namespace: NamespaceName) -> tuple[int, int]:
            now = len(divided[namespace])
            return now, at_first.get(namespace, now)

        def is_misplaced(bundle: NamespaceBundle, owner: str) -> bool:
            namespace = str(bundle.namespace)
            return rules.moves(namespace) and owner not in rules.allowed(namespace, candidates)

        changes: list[Change] = [*misplaced(loads, is_misplaced, allowed)]
        if not changes:
            balanced = {broker: load for broker, load in loads.items() if not reports[broker].is_draining}
            changes = self._balancer.decide(balanced, allowed, counts, asyncio.get_running_loop().time())
        return [change for change in changes if await self._do(change)]

    def _fresh_reports(self) -> dict[str, BrokerReport]:
        limit_s = 2 * self._config.report_max_interval_minutes * _MINUTE_S
        return {
            broker: report
            for broker, report in self.members.brokers.items()
            if report.is_modular and self.members.silent_s(broker) <= limit_s
        }

    async def _divisions(self, loads: Mapping[str, BrokerLoad]) -> dict[NamespaceName, Bundles]:
        """Returns the bundles of each namespace that is served and may be balanced."""
        found: dict[NamespaceName, Bundles] = {}
        for namespace in sorted({bundle.namespace for load in loads.values() for bundle in load.bundles}):
            if _is_dedicated(namespace):
                continue
            try:
                found[namespace] = await self._namespaces.bundles(namespace)
            except (ResourceMissingError, MalformedMetadataError) as error:
                log.info("a namespace is not balanced", extra={"namespace": str(namespace), "why": str(error)})
        return found

    async def _divisions_at_first(self, namespaces: Iterable[NamespaceName]) -> dict[NamespaceName, int]:
        """Returns the number of bundles that each namespace was created with; none while a broker of Apache is alive,
        which could own bundles that are merged, and does not expect that."""
        if not all(report.is_ours for report in self.members.brokers.values()):
            return {}
        found: dict[NamespaceName, int] = {}
        for namespace in namespaces:
            try:
                found[namespace] = len(Bundles.from_json((await self._namespaces.policies(namespace)).get("bundles")))
            except (ResourceMissingError, MalformedMetadataError):
                continue  # It is being deleted, or was not divided when it was created.
        return found

    async def _do(self, change: Change) -> bool:
        try:
            if isinstance(change, Move):
                await self._move(change)
            elif isinstance(change, Split):
                await self._split(change)
            else:
                await self._merge(change)
        except MagnetarError as error:
            self._promises.pop(change.bundle, None)
            if isinstance(change, Move):
                self._decisions.forget(change.bundle)
            extra = {"bundle": str(change.bundle), "why": str(error)}
            log.warning("a bundle could not be moved, split or merged", extra=extra)
            return False
        return True

    async def move(self, bundle: NamespaceBundle, source: str, destination: str) -> None:
        """Moves a bundle because an operator wants it; NotAllowedError if the destination is not alive."""
        if self.members.address_of(destination) is None:
            raise NotAllowedError(f"broker {destination} is not alive: choose another destination")
        try:
            await self._move(Move(bundle, source, destination, "an operator wants it"))
        except MagnetarError:
            self._promises.pop(bundle, None)
            raise

    async def _move(self, move: Move) -> None:
        log.info("a bundle moves", extra={"bundle": str(move.bundle), "to": move.destination, "why": move.why})
        self.remember(move.bundle, move.destination)
        self._note(move.bundle, move.destination, Why.MOVED, f"it was moved from broker {move.source}: {move.why}")
        if move.source == self._address.broker_id:
            assert self._host is not None
            await self._host.unload(move.bundle, move.destination)
            return
        source = self._require_alive(move.source)
        destination = move.destination if source.is_ours else None
        await self._commands.unload(source.address, move.bundle, destination)

    async def _split(self, split: Split) -> None:
        log.info("a bundle is split", extra={"bundle": str(split.bundle), "why": split.why})
        if split.owner == self._address.broker_id:
            assert self._host is not None
            await self._host.split(split.bundle)
        else:
            await self._commands.split(self._require_alive(split.owner).address, split.bundle)
        self._data.forget(str(split.bundle))

    async def _merge(self, merge: Merge) -> None:
        log.info("a bundle is merged with the next one", extra={"bundle": str(merge.bundle)})
        if merge.owner == self._address.broker_id:
            assert self._host is not None
            await self._host.merge(merge.bundle)
        else:
            await self._commands.merge(self._require_alive(merge.owner).address, merge.bundle)
        for part in (merge.bundle, merge.next):
            self._data.forget(str(part))

    def _require_alive(self, broker: str) -> BrokerReport:
        report = self.members.brokers.get(broker)
        if report is None:
            raise ServiceNotReadyError(f"broker {broker} has just left")
        return report


def limits_of(config: BalanceConfig) -> BalanceLimits:
    return BalanceLimits(
        excess_begin=config.excess_begin_percent * _SHARE,
        excess_end=config.excess_end_percent * _SHARE,
        weight_min=config.difference_min,
        rest_s=config.rest_minutes * _MINUTE_S,
        topics_max=config.bundle_topics_max,
        sessions_max=config.bundle_sessions_max,
        messages_per_s_max=config.bundle_messages_per_s_max,
        bytes_per_s_max=config.bundle_mb_per_s_max * _MEGABYTE,
        bundles_max=config.namespace_bundles_max,
        splits=config.splitting,
        moves=config.shedding,
        merges=config.merging,
    )


def _taken_over(broker: str, text: str) -> str:
    return f"broker {broker}, which had reported the bundle, had left; {text}"


@lru_cache(maxsize=_NAMES_KEPT)
def _parse(name: str) -> NamespaceBundle | None:
    """Returns None for a name that is no bundle, such as those of namespaces of Pulsar's first version."""
    try:
        return NamespaceBundle.parse(name)
    except InvalidNameError:
        return None


def _dedicated_to(namespace: NamespaceName) -> str:
    """Returns the broker whose own namespace this is; empty if it is not one of those."""
    return namespace.local if _is_dedicated(namespace) else ""


def _is_dedicated(namespace: NamespaceName) -> bool:
    return namespace.tenant in (_HEARTBEATS, _MONITORS) and ":" in namespace.local


def _without_unknown(load: BrokerLoad, divided: Mapping[NamespaceName, Bundles]) -> BrokerLoad:
    """Leaves out bundles that do not exist any more, or are not balanced."""
    bundles = {
        bundle: each
        for bundle, each in load.bundles.items()
        if bundle.namespace in divided and divided[bundle.namespace].of_hash(bundle.bundle.first) == bundle.bundle
    }
    return BrokerLoad(load.usage, bundles)
