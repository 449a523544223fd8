"""The HTTP port: open at once, loaded by the first client, limited in everything."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from magnetar.admin import server
from magnetar.admin.http import app
from magnetar.admin.http.errors import RestError, status_of
from magnetar.admin.server import AdminServer
from magnetar.config.process import HttpConfig
from magnetar.errors import BrokerTimeoutError, MagnetarError, SubscriptionTypeError
from magnetar.runtime.metrics import Health, Metrics
from magnetar.runtime.system import SystemRuntime
from magnetar.runtime.web_guard import WebGuard
from tests.unit.admin.admin_world import TOPIC, admin_world
from tests.unit.broker.pulsar.broker_world import broker_world

HOST = "127.0.0.1"


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[AdminServer, int]]:
    admin = AdminServer(Metrics(), lambda: Health(True, {}), WebGuard(HttpConfig(), HOST), SystemRuntime())
    port = await admin.start(HOST, 0)
    try:
        yield admin, port
    finally:
        await admin.aclose()


async def ask(port: int, request: bytes, *parts: bytes) -> bytes:
    """All that comes back until the server closes the connection."""
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(request)
    for part in parts:
        await writer.drain()
        await asyncio.sleep(0)
        writer.write(part)
    async with asyncio.timeout(20):
        answer = await reader.read()
    writer.close()
    return answer


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()


async def test_the_first_request_is_answered_although_nothing_is_loaded_yet() -> None:
    async with broker_world() as world, serving() as (admin, port):
        admin.attach(world.broker)
        answers = await asyncio.gather(*(ask(port, get("/admin/v2/clusters")) for _ in range(3)))
        assert all(b"200 OK" in answer and b'["standalone"]' in answer for answer in answers)
        assert b"standalone" in await ask(port, get("/admin/v2/clusters"))


async def test_before_the_broker_is_there_requests_are_told_to_come_again() -> None:
    async with serving() as (_, port):
        answer = await ask(port, get("/admin/v2/clusters"))
        assert b"503" in answer.split(b"\r\n")[0]
        assert b"starting" in answer


async def test_a_request_in_pieces_is_whole_for_the_application() -> None:
    async with broker_world() as world, serving() as (admin, port):
        admin.attach(world.broker)
        head = b"PUT /admin/v2/persistent/public/default/t/partitions HTTP/1.1\r\nHost: localhost\r\n"
        rest = b"Content-Length: 1\r\nConnection: close\r\n\r\n"
        assert b"204" in await ask(port, head, rest, b"2")
        found = await ask(port, get("/admin/v2/persistent/public/default/t/partitions"))
        assert b'"partitions":2' in found


async def test_what_is_not_http_is_refused() -> None:
    async with serving() as (_, port):
        assert b"400" in (await ask(port, b"\x00\x01\x02 what?\r\n\r\n")).split(b"\r\n")[0]


async def test_a_body_beyond_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "BODY_BYTES_MAX", 10)
    async with broker_world() as world, serving() as (admin, port):
        admin.attach(world.broker)
        head = b"PUT /admin/v2/tenants/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20\r\nConnection: close\r\n\r\n"
        assert b"413" in (await ask(port, head, b"x" * 20)).split(b"\r\n")[0]


async def test_connections_that_come_while_it_loads_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 1)
    async with broker_world() as world, serving() as (admin, port):
        admin.attach(world.broker)

        async def outcome() -> bytes:
            try:
                return await ask(port, get("/health"))
            except ConnectionError:
                return b""

        answers = await asyncio.gather(*(outcome() for _ in range(3)))
        assert any(b"200" in answer for answer in answers)
        assert b"" in answers


async def test_a_request_that_takes_too_long_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "REQUEST_SECONDS_MAX", 0.01)
    async with broker_world() as world, serving() as (admin, port):
        admin.attach(world.broker)
        never = asyncio.Event()
        monkeypatch.setattr(world.broker.service.resources.clusters, "names", never.wait)
        assert b"503" in (await ask(port, get("/admin/v2/clusters"))).split(b"\r\n")[0]


async def test_what_nobody_expected_is_a_500_that_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken() -> list[str]:
        raise KeyError("a secret of the code")

    async with broker_world() as world, serving() as (admin, port):
        admin.attach(world.broker)
        monkeypatch.setattr(world.broker.service.resources.clusters, "names", broken)
        answer = await ask(port, get("/admin/v2/clusters"))
        assert b"500" in answer.split(b"\r\n")[0]
        assert b"secret" not in answer


async def test_it_ends_while_a_client_holds_a_connection_open() -> None:
    async with broker_world() as world, serving() as (admin, port):
        admin.attach(world.broker)
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        async with asyncio.timeout(10):
            await admin.aclose()
        writer.close()


def test_a_server_that_nobody_asks_imports_no_http_stack() -> None:
    code = (
        "import sys, magnetar.cli.serve\n"
        "stack = ('starlette', 'uvicorn', 'anyio', 'magnetar.admin.http.app')\n"
        "loaded = [name for name in stack if name in sys.modules]\n"
        "sys.exit(', '.join(loaded))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).stderr.strip() == b""


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RestError(418, "no"), 418),
        (BrokerTimeoutError("late"), 503),
        (SubscriptionTypeError("other"), 503),
        (MagnetarError("odd"), 500),
    ],
)
def test_errors_that_have_no_row_are_told_by_whether_trying_again_may_help(error: MagnetarError, status: int) -> None:
    assert status_of(error) == status


async def test_a_web_page_of_another_site_cannot_empty_a_backlog() -> None:
    async with admin_world() as world:
        talker = await world.talker()
        await talker.subscribe("t", "s")
        await world.publish(3)
        skip = f"{TOPIC}/subscription/s/skip_all"
        own = {"Host": "localhost:8080"}
        for headers in (own | {"Origin": "http://evil"}, {"Host": "evil.example"}):
            answer = await world.call("POST", skip, headers=headers)
            assert answer.status == 403
            assert "http.allowed_" in answer.reason
        assert (await world.get(f"{TOPIC}/stats")).json["subscriptions"]["s"]["msgBacklog"] == 3
        assert (await world.call("POST", skip, headers=own | {"Origin": "http://localhost:8080"})).status == 204
        assert (await world.get(f"{TOPIC}/stats")).json["subscriptions"]["s"]["msgBacklog"] == 0


async def test_a_request_whose_head_never_ends_loses_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "_QUIET_SECONDS_MAX", 0)
    monkeypatch.setattr(app, "_LOOK_SECONDS", 0.01)
    async with broker_world() as world, serving() as (admin, port):
        admin.attach(world.broker)
        assert await ask(port, b"GET /admin/v2/clusters HTTP/1.1\r\nHost: local") == b""


def test_only_a_connection_without_a_new_request_is_overdue() -> None:
    quiet = app.QuietConnections()
    idle, busy, answered = _Connection(), _Connection(), _Connection()
    busy.cycle = _Cycle(response_complete=False)
    answered.cycle = _Cycle(response_complete=True)
    everybody = [idle, busy, answered]
    assert quiet.overdue(everybody, 0.0) == []
    answered.cycle = _Cycle(response_complete=True)  # Another request came and was answered between two looks.
    assert quiet.overdue(everybody, 50.0) == []
    assert quiet.overdue(everybody, 76.0) == [idle]
    assert quiet.overdue(everybody, 126.0) == [idle, answered]


@dataclass
class _Cycle:
    response_complete: bool


class _Connection:
    transport: asyncio.Transport
    cycle: _Cycle | None = None
