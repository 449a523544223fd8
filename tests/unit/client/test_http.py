"""The HTTP client: kept connections, honest errors, limits."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from magnetar.client import http as module
from magnetar.client.http import HttpClient, parse_urls
from magnetar.errors import BrokerTimeoutError, BrokerUnavailableError, ConfigError, HttpRefusedError
from magnetar.testing.waiting import until
from tests.unit.client.http_server import CHUNKED, HOST, OK, Answer, Server, serving, unused_port


def client_of(*ports: int, connections_max: int = 4) -> HttpClient:
    hosts = ",".join(f"{HOST}:{port}" for port in ports)
    return HttpClient(f"http://{hosts}", Random(1), connections_max=connections_max)


async def test_requests_share_a_connection_and_carry_their_query_and_body() -> None:
    async with serving(Server()) as server, client_of(server.port) as http:
        assert await http.get_json("/a", {"x": "b c", "flag": True, "none": None}) == {"a": 1}
        await http.request("POST", "/b", body=b"{}", timeout_s=5)
        await http.request("DELETE", "/c", timeout_s=5)
        assert server.heard == ["GET /a?x=b+c&flag=true HTTP/1.1", "POST /b HTTP/1.1", "DELETE /c HTTP/1.1"]
        assert server.bodies == [b"", b"{}", b""]
        assert server.connections == 1


@pytest.mark.parametrize(
    ("answer", "body", "kept"),
    [
        (CHUNKED + b"3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nt: 1\r\n\r\n", b"abcde", True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nxy", b"xy", False),
    ],
    ids=["chunks", "nothing", "closed behind it"],
)
async def test_every_way_to_end_a_body_is_understood(answer: bytes, body: bytes, kept: bool) -> None:
    async with serving(Server(lambda _: answer)) as server, client_of(server.port) as http:
        for _ in range(2):
            assert (await http.request("GET", "/", timeout_s=5)).body == body
        assert server.connections == (1 if kept else 2)


async def test_a_refusal_keeps_its_status_and_reason() -> None:
    refusal = b'HTTP/1.1 404 Not Found\r\ncontent-length: 18\r\n\r\n{"reason": "gone"}'
    async with serving(Server(lambda _: refusal)) as server, client_of(server.port) as http:
        with pytest.raises(HttpRefusedError, match="gone") as caught:
            await http.get_json("/a")
        assert caught.value.status == 404


async def test_a_redirect_is_followed_to_the_other_broker_with_its_body() -> None:
    async with serving(Server()) as owner:
        location = f"http://{HOST}:{owner.port}/b?x=1"
        redirect = f"HTTP/1.1 307 Moved\r\nLocation: {location}\r\ncontent-length: 0\r\n\r\n".encode()
        async with serving(Server(lambda _: redirect)) as server, client_of(server.port) as http:
            await http.request("POST", "/a", body=b"body", timeout_s=5)
            assert (owner.heard, owner.bodies) == (["POST /b?x=1 HTTP/1.1"], [b"body"])
            server.answer = lambda _: redirect.replace(str(owner.port).encode(), str(server.port).encode())
            assert (await http.request("GET", "/round", timeout_s=5)).status == 307


async def test_nobody_there_is_an_error_of_which_nothing_was_sent() -> None:
    async with client_of(await unused_port()) as http:
        with pytest.raises(BrokerUnavailableError, match="adminUrl") as caught:
            await http.request("POST", "/a", timeout_s=5)
        assert not caught.value.outcome_unknown


async def test_an_answer_that_is_lost_is_unknown_and_not_sent_again() -> None:
    async with serving(Server(lambda _: None)) as server, client_of(server.port) as http:
        with pytest.raises(BrokerUnavailableError) as caught:
            await http.request("POST", "/a", timeout_s=5)
        assert caught.value.outcome_unknown
        assert len(server.heard) == 1


async def test_an_answer_that_does_not_come_in_time_is_unknown() -> None:
    server = Server()
    server.hold = asyncio.Event()
    async with serving(server), client_of(server.port) as http:
        with pytest.raises(BrokerTimeoutError) as caught:
            await http.request("POST", "/a", timeout_s=0.05)
        assert caught.value.outcome_unknown


async def test_who_waits_for_a_connection_has_sent_nothing_when_the_time_is_over() -> None:
    server = Server()
    server.hold = asyncio.Event()
    async with serving(server), client_of(server.port, connections_max=1) as http:
        first = asyncio.ensure_future(http.request("GET", "/a", timeout_s=5))
        await until(lambda: server.heard, "the first request is there")
        with pytest.raises(BrokerUnavailableError) as caught:
            await http.request("POST", "/b", timeout_s=0.05)
        assert not caught.value.outcome_unknown
        server.hold.set()
        assert (await first).status == 200
        assert server.heard == ["GET /a HTTP/1.1"]


async def test_a_kept_connection_that_was_closed_meanwhile_is_not_used() -> None:
    async with serving(Server()) as server, client_of(server.port) as http:
        await http.get_json("/a")
        server.writers[0].transport.abort()
        for _ in range(20):
            await asyncio.sleep(0)
        assert (await http.request("POST", "/b", timeout_s=5)).status == 200
        assert server.connections == 2


async def test_a_get_on_a_kept_connection_that_dies_is_sent_again_once() -> None:
    async with serving(Server()) as server, client_of(server.port) as http:
        await http.get_json("/a")
        answers: list[Answer] = [None, OK]
        server.answer = lambda _: answers.pop(0)
        assert (await http.request("GET", "/b", timeout_s=5)).status == 200
        assert (server.connections, len(server.heard)) == (2, 3)


async def test_a_get_waits_for_a_broker_that_comes_back() -> None:
    port = await unused_port()
    async with client_of(port) as http:
        asked = asyncio.ensure_future(http.get_json("/a", patience_s=10))
        for _ in range(20):  # It has failed now; if not, it is answered anyway.
            await asyncio.sleep(0)
        busy = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\n\r\nbusy"
        answers: list[Answer] = [busy, OK]
        async with serving(Server(lambda _: answers.pop(0)), port):
            assert await asked == {"a": 1}


async def test_patience_ends() -> None:
    async with client_of(await unused_port()) as http:
        with pytest.raises(BrokerUnavailableError):
            await http.get_json("/a", patience_s=0.05)


async def test_the_next_address_is_asked_when_nobody_answers_at_one() -> None:
    async with serving(Server()) as server, client_of(await unused_port(), server.port) as http:
        assert await http.get_json("/a") == {"a": 1}
        assert http._preferred == 1
        assert (await http.request("POST", "/b", timeout_s=5)).status == 200


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n",
        CHUNKED + b"zz\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000,
    ],
    ids=["another protocol", "no length", "too long", "no chunk", "endless head"],
)
async def test_what_is_no_answer_is_an_error_and_ends_the_connection(answer: bytes) -> None:
    async with serving(Server(lambda _: answer)) as server, client_of(server.port) as http:
        with pytest.raises(BrokerUnavailableError) as caught:
            await http.request("POST", "/a", timeout_s=5)
        assert caught.value.outcome_unknown
        server.answer = lambda _: OK
        assert (await http.request("GET", "/a", timeout_s=5)).status == 200


async def test_a_body_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_BYTES_MAX", 6)
    async with serving(Server()) as server, client_of(server.port) as http:
        with pytest.raises(BrokerUnavailableError, match="7 bytes"):
            await http.request("POST", "/a", timeout_s=5)


async def test_a_closed_client_sends_nothing() -> None:
    async with serving(Server()) as server:
        http = client_of(server.port)
        await http.get_json("/a")
        await http.aclose()
        with pytest.raises(BrokerUnavailableError, match="closed"):
            await http.request("GET", "/a", timeout_s=5)


async def test_connections_that_nobody_uses_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_IDLE_S_MAX", 0.01)
    async with serving(Server()) as server, client_of(server.port) as http:
        await asyncio.gather(*(http.get_json("/a") for _ in range(3)))
        await until(lambda: not http._pool.kept and http._pool._reaper is None, "nothing is kept")
        assert (await http.get_json("/a")) == {"a": 1}


async def test_a_connection_that_was_idle_for_long_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_IDLE_S_MAX", -1.0)
    async with serving(Server()) as server, client_of(server.port) as http:
        await http.get_json("/a")
        await http.get_json("/a")
        assert server.connections == 2


def test_addresses_are_one_or_several() -> None:
    assert [str(each) for each in parse_urls("http://a:8080/")] == ["a:8080"]
    assert [str(each) for each in parse_urls("http://a:8080,b:9090, http://[::1]:80")] == [
        "a:8080",
        "b:9090",
        "[::1]:80",
    ]


@pytest.mark.parametrize(
    "text", ["", "a:8080", "https://a", "http://", "http://a/path", "http://a:port", "http://[::1"]
)
def test_an_address_that_is_none_says_what_one_looks_like(text: str) -> None:
    with pytest.raises(ConfigError, match="http://HOST:PORT"):
        parse_urls(text)
