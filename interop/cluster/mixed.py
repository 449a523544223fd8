"""A ZooKeeper, a bookie and a broker of each make, as processes, and what a check asks of the brokers over HTTP.

Copies:  Every entry is on both bookies, so each make of broker reads and writes on each make of bookie.
Durable: Apache's broker writes every acknowledgement before its receipt: by default it writes one per second, and a
         kill loses the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self

from interop.apache import quick_apache_bookie
from interop.bookies import Registry
from interop.java_program import QUICK_JVM
from interop.pulsar.apache import ApacheBroker
from interop.pulsar.servers import Broker, MagnetarBroker
from magnetar.testing.processes.child import wait_for
from magnetar.testing.processes.cluster import ProcessCluster
from workloads import admin_http

_OUR_SESSION_MS: Final = 4_000  # A killed broker's bundles have an owner for this time.
_APACHES_SESSION_MS: Final = 8_000  # Its start keeps a busy machine from answering, and it ends if its session does.
NAMESPACE: Final = "public/default"
INTERCEPTORS: Final = ",".join(
    f"org.apache.pulsar.common.intercept.{name}"
    for name in ("AppendBrokerTimestampMetadataInterceptor", "AppendIndexMetadataInterceptor")
)
"""Makes Apache's broker write what magnetar always writes: the index and the time of each entry."""
_OUR_SETTINGS: Final = (f"metadata.session_timeout_ms={_OUR_SESSION_MS}",)
_APACHES_SETTINGS: Final[Mapping[str, object]] = {
    "metadataStoreSessionTimeoutMillis": _APACHES_SESSION_MS,
    "acknowledgmentAtBatchIndexLevelEnabled": "true",
    "managedLedgerDefaultMarkDeleteRateLimit": 0,
    "functionsWorkerEnabled": "false",
}
_WAIT_S: Final = 60.0


class Mixed:
    """`with` starts and ends it all."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._bookies = ProcessCluster(directory / "cluster", 1, _OUR_SETTINGS)
        self._stack = ExitStack()
        self.brokers: dict[str, Broker] = {}
        """By the names of the makes: magnetar and apache."""
        self._apache: ApacheBroker | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._bookies)
            zookeeper = self._bookies.metadata.removeprefix("zk://")
            bookie = quick_apache_bookie(self.directory / "apache-bookie", zookeeper)
            bookie.launch()
            stack.callback(bookie.kill)
            ours = MagnetarBroker(self.directory / "magnetar-broker", self._bookies.metadata, *_OUR_SETTINGS)
            stack.callback(ours.close)
            with Registry(zookeeper) as registry:
                bookie.wait_ready(registry)
            ours.wait_ready()  # It makes what brokers share, which Apache's needs at its start.
            theirs = ApacheBroker(
                self.directory / "apache-broker", zookeeper, _APACHES_SETTINGS, copies=2, jvm=(QUICK_JVM,)
            )
            stack.callback(theirs.close)
            theirs.wait_ready()
            self.brokers = {"magnetar": ours, "apache": theirs}
            self._apache = theirs
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stack.close()

    @property
    def url(self) -> str:
        """Names both brokers."""
        return "pulsar://" + ",".join(each.url.removeprefix("pulsar://") for each in self.brokers.values())

    @property
    def apache(self) -> ApacheBroker:
        assert self._apache is not None, "the cluster was not started"
        return self._apache

    def other(self, make: str) -> str:
        return next(each for each in self.brokers if each != make)

    def run_only(self, *makes: str) -> None:
        """Starts these brokers, unless they run. Returns when each knows that there are no others."""
        for make in makes:
            if not self.brokers[make].is_running:
                self.brokers[make].start()
        expected = sorted(self.brokers[make].broker_id for make in makes)
        for make in makes:
            broker = self.brokers[make]
            broker.wait_ready()
            wait_for(
                lambda broker=broker: sorted(get(broker, "/admin/v2/brokers")) == expected,  # type: ignore[misc]
                what=f"{make} knows that these brokers run, and no others: {expected}",
                timeout=_WAIT_S,
            )

    def leave(self, make: str, how: str) -> None:
        """`stop` as an operator stops it, or `kill`."""
        broker = self.brokers[make]
        if how == "stop":
            broker.stop()
        else:
            broker.close()

    def owner(self, topic: str, *, asked: str) -> str:
        """The make of the broker that serves the topic, as a broker says."""
        found = get(self.brokers[asked], f"/lookup/v2/topic/persistent/{NAMESPACE}/{topic}")
        return next(make for make, broker in self.brokers.items() if broker.url == found["brokerUrl"])

    def bundle(self, topic: str) -> str:
        return str(get(self.brokers["magnetar"], f"/lookup/v2/topic/persistent/{NAMESPACE}/{topic}/bundle"))


def get(broker: Broker, path: str) -> Any:
    return ask(broker, "GET", path)


def ask(broker: Broker, method: str, path: str, body: Any = None) -> Any:
    """The answer of the broker, or of the one to which it redirects. HTTPError if it is refused."""
    return admin_http.ask(broker.admin_url, method, path, body)
