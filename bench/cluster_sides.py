"""A cluster of each make as processes: a ZooKeeper, two bookies and two brokers, and what a benchmark asks of it.

Each make brings its own bookies, and Apache's run as Pulsar runs them: `DbLedgerStorage`, the journal synced. Both have
the same ZooKeeper, with its fsync on, the same session timeout, and every entry on both bookies. Neither moves or
splits bundles by itself meanwhile. The broker that is killed is never the leader, and the one that is measured stays
warm: the first broker is started before the second one, and only the second one is killed.
"""

from __future__ import annotations

import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from kazoo.client import KazooClient

from bench.bookie_contest import data_directory
from bench.pulsar import cpu_seconds, resident_mb
from bench.worker_process import WorkerProcess
from interop.apache import apache_bookie
from interop.bookies import Bookie, Registry
from interop.cluster.mixed import ask
from interop.jars import JAVA_MIN
from interop.pulsar.apache import ApacheBroker, set_up_cluster
from interop.pulsar.servers import Broker, MagnetarBroker
from magnetar.errors import ProcessFailedError
from magnetar.runtime.java import find_java
from magnetar.testing.processes.child import wait_for
from magnetar.testing.processes.cluster import ProcessCluster
from magnetar.testing.processes.zookeeper import ZooKeeperServer

SESSION_MS: Final = 8_000
"""Of all brokers. Apache's ends itself if a busy machine keeps its start from answering for this time."""
BOOKIES: Final = 2
COPIES: Final = 2
NAMESPACE: Final = "public/bench"
BUNDLES: Final = 64
"""So that neither make would split them: 10,000 topics are 157 in each."""
_OUR_SETTINGS: Final = (
    f"metadata.session_timeout_ms={SESSION_MS}",
    "balance.shedding=false",
    "balance.splitting=false",
)
_APACHES_SETTINGS: Final[Mapping[str, object]] = {
    "metadataStoreSessionTimeoutMillis": SESSION_MS,
    "loadBalancerSheddingEnabled": "false",
    "loadBalancerAutoBundleSplitEnabled": "false",
    "functionsWorkerEnabled": "false",
}
_WAIT_S: Final = 60.0
_JCMD_TIMEOUT_S: Final = 120
_MOVES_MAX: Final = 10


class HasPid(Protocol):
    @property
    def pid(self) -> int: ...


class Deployment(ABC):
    """One make. `with` starts and ends it all."""

    def __init__(self, directory: Path, bookies: int) -> None:
        """`bookies`: how many of ours."""
        self._directory = directory
        self._cluster = ProcessCluster(directory / "cluster", bookies)
        self._stack = ExitStack()
        self.brokers: list[Broker] = []

    @property
    def zookeeper(self) -> str:
        return self._cluster.metadata.removeprefix("zk://")

    @property
    def url(self) -> str:
        """Names both brokers, the one that is never killed first."""
        return "pulsar://" + ",".join(each.url.removeprefix("pulsar://") for each in self.brokers)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._cluster)
            self._start_bookies(stack)
            for number in (1, 2):
                broker = self._new_broker(self._directory / f"broker-{number}")
                stack.callback(broker.close)
                broker.wait_ready()
                self.brokers.append(broker)
            self.kazoo = KazooClient(self.zookeeper)
            self.kazoo.start(timeout=_WAIT_S)
            stack.callback(self.kazoo.close)
            stack.callback(self.kazoo.stop)
            ask(self.brokers[0], "PUT", f"/admin/v2/namespaces/{NAMESPACE}", {"bundles": {"numBundles": BUNDLES}})
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @abstractmethod
    def _start_bookies(self, stack: ExitStack) -> None:
        """Returns when all that brokers need is there."""

    @abstractmethod
    def _new_broker(self, directory: Path) -> Broker:
        """Starts it, and does not wait."""

    def resident_bytes(self) -> float:
        """Of both brokers."""
        return sum(resident_mb(each.pid) for each in self.brokers) * 1e6

    @abstractmethod
    def live_bytes(self) -> float:
        """What the objects of both brokers take. Garbage is collected before."""

    def cpu_seconds(self) -> float:
        """Used by brokers, bookies and ZooKeeper until now."""
        assert isinstance(self._cluster.zookeeper, ZooKeeperServer)
        return sum(cpu_seconds(each.pid) for each in (*self.brokers, *self._bookies(), self._cluster.zookeeper))

    @abstractmethod
    def _bookies(self) -> Sequence[HasPid]: ...

    # --- bundles ------------------------------------------------------------------------------------------------------

    def bundle_of(self, topic: str) -> str:
        return str(ask(self.brokers[0], "GET", f"/lookup/v2/topic/{topic.replace('://', '/')}/bundle"))

    def owner_node(self, topic: str) -> str:
        return f"/namespace/{NAMESPACE}/{self.bundle_of(topic)}"

    def unload(self, topic: str) -> None:
        """Returns when its owner has given the topic's bundle up."""
        ask(self.brokers[0], "PUT", f"/admin/v2/namespaces/{NAMESPACE}/{self.bundle_of(topic)}/unload")

    def move(self, topic: str, to: Broker) -> None:
        """A lookup at the same moment may choose another owner: then the bundle is moved again."""
        for _ in range(_MOVES_MAX):
            if self._owner_of(topic) == to.url:
                return
            path = f"/admin/v2/namespaces/{NAMESPACE}/{self.bundle_of(topic)}/unload"
            ask(self.brokers[0], "PUT", f"{path}?destinationBroker={to.broker_id}")
        raise ProcessFailedError(f"{topic} was moved to {to.url} {_MOVES_MAX} times, and is served by another broker")

    def _owner_of(self, topic: str) -> str:
        return str(ask(self.brokers[0], "GET", f"/lookup/v2/topic/{topic.replace('://', '/')}")["brokerUrl"])

    def wait_whole(self) -> None:
        """Returns when both brokers run, and each of them knows it."""
        expected = sorted(each.broker_id for each in self.brokers)
        for broker in self.brokers:
            broker.wait_ready()
            wait_for(
                lambda broker=broker: sorted(ask(broker, "GET", "/admin/v2/brokers")) == expected,  # type: ignore[misc]
                what=f"{broker.url} knows {expected}",
                timeout=_WAIT_S,
            )


class MagnetarDeployment(Deployment):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory, BOOKIES)

    def _start_bookies(self, stack: ExitStack) -> None:
        """They run already: they are the cluster's."""

    def _new_broker(self, directory: Path) -> Broker:
        return MagnetarBroker(directory, self._cluster.metadata, *_OUR_SETTINGS)

    def _bookies(self) -> Sequence[HasPid]:
        return self._cluster.bookies

    def live_bytes(self) -> float:
        """All that is resident: objects are freed when the last reference goes."""
        return self.resident_bytes()


class ApacheDeployment(Deployment):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory, 0)
        self._own_bookies: list[Bookie] = []

    def _start_bookies(self, stack: ExitStack) -> None:
        set_up_cluster(self._directory, self.zookeeper)
        with Registry(self.zookeeper) as registry:
            for number in range(1, BOOKIES + 1):
                bookie = apache_bookie(self._directory / f"bookie-{number}", self.zookeeper)
                bookie.launch()
                stack.callback(bookie.kill)
                self._own_bookies.append(bookie)
            for bookie in self._own_bookies:
                bookie.wait_ready(registry)

    def _new_broker(self, directory: Path) -> Broker:
        return ApacheBroker(directory, self.zookeeper, _APACHES_SETTINGS, copies=COPIES)

    def _bookies(self) -> Sequence[HasPid]:
        return self._own_bookies

    def live_bytes(self) -> float:
        """Of the heap. Direct memory is left out."""
        return sum(_live_heap_bytes(each.pid) for each in self.brokers)


def _live_heap_bytes(pid: int) -> float:
    """After a full collection."""
    command = [find_java(JAVA_MIN).home / "bin" / "jcmd", str(pid), "GC.class_histogram"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_JCMD_TIMEOUT_S, check=False)
    if done.returncode:
        raise ProcessFailedError(f"jcmd could not list the objects of {pid}: {done.stdout}{done.stderr}")
    return parse_live_bytes(done.stdout)


def parse_live_bytes(histogram: str) -> float:
    """From the last line, such as `Total  93861  5120368`."""
    return float(next(line for line in reversed(histogram.splitlines()) if line.startswith("Total")).split()[2])


MAKES: Final[Mapping[str, type[MagnetarDeployment | ApacheDeployment]]] = {
    "magnetar": MagnetarDeployment,
    "apache": ApacheDeployment,
}


class Contestant:
    """A cluster, and a client of it in a process that stays."""

    def __init__(self, make: str, deployment: Deployment, client: WorkerProcess) -> None:
        self.make = make
        self.deployment = deployment
        self.client = client
        self._topics = 0

    def measure(self, op: str, per: float, **arguments: object) -> dict[str, float]:
        """The client's figures, with the CPU that the cluster used, in microseconds per one of `per`."""
        used = self.deployment.cpu_seconds()
        figures: dict[str, float] = self.client.ask(op, **arguments)
        return {**figures, "servers_CPU_us": (self.deployment.cpu_seconds() - used) / per * 1e6}

    def new_topic(self, kind: str) -> str:
        self._topics += 1
        return f"persistent://{NAMESPACE}/{kind}-{self._topics}"


class Contest:
    """Both clusters, standing while either is measured."""

    def __init__(self, ours: str, answer_timeout_s: float) -> None:
        self._makes = (ours, "apache")
        self._answer_timeout_s = answer_timeout_s
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            directory = Path(stack.enter_context(data_directory()))
            self.sides = [self._side(stack, directory, number, make) for number, make in enumerate(self._makes)]
            self._stack = stack.pop_all()
        return self

    def _side(self, stack: ExitStack, directory: Path, number: int, make: str) -> Contestant:
        home = directory / f"{number}-{make}"
        deployment = stack.enter_context(MAKES[make](home))
        words = deployment.url, str(home / "client.log")
        client = WorkerProcess("bench.cluster_worker", *words, answer_timeout_s=self._answer_timeout_s)
        return Contestant(make, deployment, stack.enter_context(client))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
