"""The official client against a server: ours, in a process of its own, or any whose URLs are in the environment.

    PULSAR_URL=pulsar://… PULSAR_ADMIN_URL=http://… pytest tests/integration/pulsar/features

runs the same tests against Apache Pulsar, which shows that what they ask for is what Pulsar does.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pulsar
import pulsar.asyncio
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from interop.pulsar.servers import MagnetarStandalone
from magnetar.testing.processes.child import wait_for
from tests.integration.pulsar.features.asyncio_client import new_client

PATIENCE_MS = 20_000
QUIET_MS = 400  # Long enough for a message that must not come to have come.
_NUMBERS = itertools.count(1)


class Server:
    def __init__(self, url: str, admin_url: str) -> None:
        self.url = url
        self.admin_url = admin_url

    def admin(self, method: str, path: str, body: Any = None) -> Any:
        """A call of the REST API below /admin/v2."""
        data = None if body is None else json.dumps(body).encode()
        request = Request(
            f"{self.admin_url}/admin/v2/{path}", data, {"Content-Type": "application/json"}, method=method
        )
        with urlopen(request, timeout=20) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def admin_status(self, method: str, path: str, body: Any = None) -> int:
        try:
            self.admin(method, path, body)
        except HTTPError as error:
            with error:
                return error.code
        return 200


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if "PULSAR_URL" in os.environ:
        yield Server(os.environ["PULSAR_URL"], os.environ["PULSAR_ADMIN_URL"])
        return
    directory: Path = tmp_path_factory.mktemp("standalone")
    with MagnetarStandalone(directory) as standalone:
        standalone.wait_ready()
        yield Server(standalone.url, standalone.admin_url)


@pytest.fixture(scope="session")
def client(server: Server) -> Iterator[pulsar.Client]:
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(server.url, logger=quiet, operation_timeout_seconds=20)
    yield client
    client.close()


@pytest.fixture
async def async_client(server: Server) -> AsyncIterator[pulsar.asyncio.Client]:
    client = new_client(server.url)
    yield client
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
