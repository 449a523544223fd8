"""The official client against a server: ours, in a process of its own, or any whose URLs are in the environment.

    PULSAR_URL=pulsar://… PULSAR_ADMIN_URL=http://… pytest tests/integration/pulsar/features

runs the same tests against Apache Pulsar, which shows that what they ask for is what Pulsar does.

    pytest tests/integration/pulsar/features --moving-cluster SEED

runs them on a cluster of three brokers and four bookies, of which a random bundle is unloaded every second. What a test
asserts is the same. A test that needs a topic to stay where it is has the marker `quiet_owner(reason)`: no bundle moves
during it. At most one test in ten may have it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pulsar
import pulsar.asyncio
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from interop.pulsar.servers import MagnetarStandalone
from magnetar.testing.processes.child import wait_for
from magnetar.testing.processes.cluster import ProcessCluster
from tests.integration.pulsar.features import moving_clients
from tests.integration.pulsar.features.asyncio_client import new_client
from workloads.admin_http import ask
from workloads.moving_bundles import MovingBundles

PATIENCE_MS = 20_000
QUIET_MS = 400  # Long enough for a message that must not come to have come.
_NUMBERS = itertools.count(1)


_ONE_IN = 10
_BROKERS, _BOOKIES = 3, 4
_SESSION = ("metadata.session_timeout_ms=10_000",)  # Sessions do not end here, however busy the machine is.
_REPORT = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--moving-cluster", type=int, metavar="SEED", help="on a cluster whose bundles move every second")
    parser.addoption("--moving-every", type=float, default=1.0, metavar="S", help="with other pauses than a second")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "quiet_owner(reason): no bundle moves during the test, for this reason")
    config.stash[_REPORT] = []


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Counts the marked tests before any are deselected. A file by itself may have more of them."""
    here = Path(__file__).parent
    suite = [item for item in items if item.path.parent == here]
    quiet = [mark for item in suite if (mark := item.get_closest_marker("quiet_owner")) is not None]
    if any(not mark.kwargs.get("reason") for mark in quiet):
        raise pytest.UsageError("quiet_owner needs a reason: @pytest.mark.quiet_owner(reason=...)")
    if config.getoption("--moving-cluster", None) is not None:
        config.stash[_REPORT].append(f"{len(quiet)} of {len(suite)} tests need a quiet owner")
    is_whole = {item.path for item in suite} == set(here.glob("test_*.py"))
    if is_whole and len(quiet) * _ONE_IN > len(suite):
        raise pytest.UsageError(f"{len(quiet)} of {len(suite)} tests need a quiet owner: at most one in {_ONE_IN} may")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in config.stash[_REPORT]:
        terminalreporter.write_line(line)


class Server:
    def __init__(self, url: str, admin_url: str, moving: MovingBundles | None = None) -> None:
        self.url = url
        self.admin_url = admin_url
        self.moving = moving

    def admin(self, method: str, path: str, body: Any = None) -> Any:
        """A call of the REST API below /admin/v2, at the broker that it is for."""
        patience_s = 0 if self.moving is None else PATIENCE_MS / 1_000
        return ask(self.admin_url, method, f"/admin/v2/{path}", body, patience_s=patience_s)

    def admin_status(self, method: str, path: str, body: Any = None) -> int:
        try:
            self.admin(method, path, body)
        except HTTPError as error:
            with error:
                return error.code
        return 200


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if "PULSAR_URL" in os.environ:
        yield Server(os.environ["PULSAR_URL"], os.environ["PULSAR_ADMIN_URL"])
        return
    seed = request.config.getoption("--moving-cluster", None)
    if seed is not None:
        every_s: float = request.config.getoption("--moving-every")
        yield from moving_cluster(seed, every_s, tmp_path_factory.mktemp("moving"), request.config.stash[_REPORT])
        return
    directory: Path = tmp_path_factory.mktemp("standalone")
    with MagnetarStandalone(directory) as standalone:
        standalone.wait_ready()
        yield Server(standalone.url, standalone.admin_url)


def moving_cluster(seed: int, every_s: float, directory: Path, report: list[str]) -> Iterator[Server]:
    with ProcessCluster(directory, _BOOKIES, _SESSION, brokers=_BROKERS, broker_settings=_SESSION) as cluster:
        hosts = ",".join(broker.url.removeprefix("pulsar://") for broker in cluster.brokers)
        with MovingBundles([broker.admin_url for broker in cluster.brokers], seed, every_s=every_s) as moving:
            yield Server(f"pulsar://{hosts}", cluster.brokers[0].admin_url, moving)
        report.append(f"seed {seed}: {moving.unloads} bundles were unloaded, {moving.refused} unloads refused")
        assert moving.unloads, "no bundle moved"
        assert not moving.failures, moving.failures


@pytest.fixture(autouse=True)
def quiet_owner(request: pytest.FixtureRequest) -> Iterator[None]:
    """No bundle moves during a test that is marked so."""
    with contextlib.ExitStack() as stack:
        if request.node.get_closest_marker("quiet_owner") is not None:
            server: Server = request.getfixturevalue("server")
            if server.moving is not None:
                stack.enter_context(server.moving.resting())
        yield


@pytest.fixture(scope="session")
def client(server: Server) -> Iterator[pulsar.Client]:
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(server.url, logger=quiet, operation_timeout_seconds=20)
    yield client if server.moving is None else moving_clients.Client(client, server.moving.has_moved)
    client.close()


@pytest.fixture
async def async_client(server: Server) -> AsyncIterator[pulsar.asyncio.Client]:
    client = new_client(server.url)
    yield client if server.moving is None else moving_clients.AsyncClient(client, server.moving.has_moved)
    await client.close()


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/t-{os.getpid()}-{next(_NUMBERS)}"


@pytest.fixture
def namespace(server: Server) -> str:
    """A namespace of its own, for tests that change policies."""
    name = f"public/n-{os.getpid()}-{next(_NUMBERS)}"
    server.admin("PUT", f"namespaces/{name}", {})
    return name


def has_moved(server: Server, topic: str, since_s: float) -> bool:
    return server.moving is not None and server.moving.has_moved(topic, since_s)


def require_next_count(server: Server, topic: str, count: int, before: int, since_s: float) -> None:
    """A message that comes again has the next number of redeliveries. A topic that has moved counts anew."""
    assert count == before + 1 or (count == 0 and has_moved(server, topic, since_s)), (before, count)


def clients_of(server: Server, topic: str) -> int:
    stats = server.admin("GET", f"persistent/{topic.removeprefix('persistent://')}/stats")
    consumers = [consumer for each in stats["subscriptions"].values() for consumer in each["consumers"]]
    return len(stats["publishers"]) + len(consumers)


def assert_refused(
    server: Server,
    topic: str,
    attempt: Callable[[], Any],
    errors: type[Exception] | tuple[type[Exception], ...],
    *,
    holders: int = 1,
) -> None:
    """The attempt fails because of clients that are connected. Where bundles move, these may not yet
    have reached the next owner: then the attempt is taken back, and made again when they have come."""
    while True:
        wait_for(lambda: clients_of(server, topic) == holders, what="the clients", timeout=PATIENCE_MS / 1_000)
        began = time.monotonic()
        try:
            intruder = attempt()
        except errors:
            return
        assert has_moved(server, topic, began), "the attempt was not refused"
        intruder.close()


def texts(consumer: Any, count: int, *, acknowledge: bool = True) -> list[str]:
    """The next messages, as text."""
    found = []
    for _ in range(count):
        message = consumer.receive(PATIENCE_MS)
        found.append(message.data().decode())
        if acknowledge:
            consumer.acknowledge(message)
    return found


def messages(consumer: Any, count: int) -> list[pulsar.Message]:
    return [consumer.receive(PATIENCE_MS) for _ in range(count)]


def is_quiet(consumer: Any) -> bool:
    try:
        consumer.receive(QUIET_MS)
    except pulsar.Timeout:
        return True
    return False


def drain(*consumers: Any, count: int) -> list[list[pulsar.Message]]:
    """This many messages, acknowledged: what each consumer got. Nothing more comes after them."""
    found: list[list[pulsar.Message]] = [[] for _ in consumers]

    def all_have_come() -> bool:
        for consumer, got in zip(consumers, found, strict=True):
            got.extend(_waiting_in(consumer))
        return sum(map(len, found)) >= count

    wait_for(all_have_come, what="the last message", timeout=PATIENCE_MS / 1_000)
    assert is_quiet(consumers[0])
    assert not [message for consumer in consumers for message in _waiting_in(consumer)]
    assert sum(map(len, found)) == count
    return found


def _waiting_in(consumer: Any) -> Iterator[pulsar.Message]:
    """Messages that the consumer has by now, acknowledged."""
    with contextlib.suppress(pulsar.Timeout):
        while True:
            message = consumer.receive(5)
            consumer.acknowledge(message)
            yield message


def send_texts(client: pulsar.Client, topic: str, count: int, first: int = 0, **settings: Any) -> list[str]:
    producer = client.create_producer(topic, **settings)
    sent = [f"m-{number}" for number in range(first, first + count)]
    for text in sent:
        producer.send_async(text.encode(), None)
    producer.flush()
    producer.close()
    return sent


def key_reader(directory: Path) -> pulsar.CryptoKeyReader:
    """With a key pair of its own."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private, public = directory / "private.pem", directory / "public.pem"
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return pulsar.CryptoKeyReader(str(public), str(private))
