from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from magnetar.bookie.observation import ObservationServer
from magnetar.config.process import HttpConfig
from magnetar.runtime.metrics import Health, Metrics
from magnetar.runtime.web_guard import WebGuard


class Page:
    def __init__(self) -> None:
        self.healthy = True
        self.metrics = Metrics()
        self.metrics.counter("magnetar_test_things_total", "Things.").inc()
        guard = WebGuard(HttpConfig(), "127.0.0.1")
        self.server = ObservationServer(self.metrics, lambda: Health(self.healthy, {"state": "writable"}), guard)
        self.port = 0

    async def ask(self, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(request)
        async with asyncio.timeout(10):
            answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        return answer


@pytest_asyncio.fixture
async def page() -> AsyncIterator[Page]:
    made = Page()
    made.port = await made.server.start("127.0.0.1", 0)
    yield made
    await made.server.aclose()


async def test_metrics_are_served_in_the_format_of_prometheus(page: Page) -> None:
    answer = await page.ask(b"GET /metrics HTTP/1.1\r\nHost: localhost:8000\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"magnetar_test_things_total 1.0\n" in answer


async def test_health_says_yes_or_no_by_its_status(page: Page) -> None:
    assert (await page.ask(b"GET /health HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200 OK")
    page.healthy = False
    answer = await page.ask(b"GET /health HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 503")
    assert answer.endswith(b'{"healthy": false, "state": "writable"}\n')


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /other HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /health HTTP/1.1\r\n\r\n", b"405"),
        (b"nonsense\r\n\r\n", b"400"),
    ],
)
async def test_anything_else_is_refused_with_a_reason(page: Page, request_bytes: bytes, status: bytes) -> None:
    assert (await page.ask(request_bytes)).startswith(b"HTTP/1.1 " + status)


async def test_a_request_that_never_ends_is_cut_off_without_an_answer(page: Page) -> None:
    answer = b""
    with contextlib.suppress(ConnectionResetError):
        answer = await page.ask(b"GET /metrics HTTP/1.1\r\n" + b"X-Long: " + b"a" * 20_000)
    assert answer == b""


@pytest.mark.parametrize(
    "header", [b"Host: evil.example", b"HOST : evil.example", b"host: localhost\r\nOrigin: http://evil"]
)
async def test_a_page_of_another_site_reads_nothing(page: Page, header: bytes) -> None:
    answer = await page.ask(b"GET /metrics HTTP/1.1\r\n" + header + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 403")
    assert b"things" not in answer
    assert b"http.allowed_" in answer
