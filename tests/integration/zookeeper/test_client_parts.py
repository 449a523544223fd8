"""The parts below the store, without a server."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import threading
from collections.abc import Iterator
from typing import Any
from unittest.mock import MagicMock

import pytest
from kazoo import exceptions as kazoo
from kazoo.protocol.states import KeeperState, ZnodeStat

import magnetar.metadata.zookeeper
from magnetar.errors import (
    AccessDeniedError,
    ConfigError,
    MetadataError,
    MetadataUnavailableError,
    MissingDependencyError,
    OutcomeUnknownError,
    SessionExpiredError,
    StoreClosedError,
)
from magnetar.metadata.store import Check, Create, Delete, Get, Put, Transact
from magnetar.metadata.zookeeper.client import Client, LoopHandler, NotSentError, Result
from magnetar.metadata.zookeeper.store import Address, node_of, transaction_results, translate
from magnetar.testing.waiting import until


@pytest.mark.parametrize(
    ("url", "servers", "chroot"),
    [
        ("zk://h1", ("h1:2181",), ""),
        ("zk://h1:2182/", ("h1:2182",), ""),
        ("zk://h1:1,h2:2,[::1]:3/a/b", ("h1:1", "h2:2", "[::1]:3"), "/a/b"),
        ("zk://h1, h2/a/", ("h1:2181", "h2:2181"), "/a"),
    ],
)
def test_an_address_is_servers_and_a_chroot(url: str, servers: tuple[str, ...], chroot: str) -> None:
    assert Address.parse(url) == Address(servers, chroot)


@pytest.mark.parametrize(
    "url",
    [
        "zk://",
        "zk:h1",
        "zk://h1,,h2",
        "zk://h1:0",
        "zk://h1:65536",
        "zk://h1:x",
        "zk://h1//a",
        "zk://h1/a/../b",
        "zk://user@h1",
        "zk://h 1",
    ],
)
def test_what_is_not_an_address_is_refused_with_the_form(url: str) -> None:
    with pytest.raises(ConfigError, match=r"metadata\.url"):
        Address.parse(url)


class TestNotSent:
    """What a connection's end means depends on whether the request had left."""

    @pytest.fixture
    def client(self, event_loop_handler: LoopHandler) -> Client:
        return Client("127.0.0.1:1", timeout_ms=1000, handler=event_loop_handler)

    @pytest.fixture
    def event_loop_handler(self) -> Iterator[LoopHandler]:
        loop = asyncio.new_event_loop()
        yield LoopHandler(loop, None)
        loop.close()

    def test_a_node_that_is_created_leaves_nothing_for_the_cycle_collector(self, client: Client) -> None:
        client._state, client._connection._write_sock = KeeperState.CONNECTED, MagicMock()
        gc.collect()
        gc.disable()
        try:
            for number in range(100):
                client.create_node(f"/{number}", b"", is_ephemeral=True, is_sequential=True).rawlink(str)
            while client._queue:
                request, result = client._queue.popleft()
                result.set(request.path)
            del request, result
            assert gc.collect() == 0
        finally:
            gc.enable()

    @pytest.mark.parametrize("state", [KeeperState.CONNECTING, KeeperState.EXPIRED_SESSION, KeeperState.AUTH_FAILED])
    def test_the_queue_was_not_sent_and_the_rest_is_lost(self, client: Client, state: str) -> None:
        client._state = KeeperState.CONNECTED
        sent, queued = Result(), Result()
        client._pending.append((None, sent, 1))
        client._queue.append((None, queued))
        client._session_callback(state)
        assert isinstance(sent.exception, kazoo.ConnectionLoss)
        assert isinstance(queued.exception, NotSentError)


@pytest.mark.parametrize(
    ("error", "closing", "expected"),
    [
        (kazoo.ConnectionLoss(), False, OutcomeUnknownError),
        (kazoo.ConnectionLoss(), True, OutcomeUnknownError),
        (NotSentError(KeeperState.CONNECTING), False, MetadataUnavailableError),
        (NotSentError(KeeperState.EXPIRED_SESSION), False, SessionExpiredError),
        (NotSentError(KeeperState.AUTH_FAILED), False, AccessDeniedError),
        (NotSentError(KeeperState.CLOSED), True, StoreClosedError),
        (kazoo.ConnectionClosedError(), True, StoreClosedError),
        (kazoo.ConnectionClosedError(), False, MetadataUnavailableError),
        (kazoo.SessionExpiredError(), False, SessionExpiredError),
        (kazoo.NoAuthError(), False, AccessDeniedError),
        (kazoo.SystemZookeeperError(), False, OutcomeUnknownError),
        (kazoo.OperationTimeoutError(), False, OutcomeUnknownError),
        (RuntimeError("nonsense"), False, OutcomeUnknownError),
    ],
    ids=lambda value: getattr(value, "__name__", repr(value)),
)
def test_an_error_of_a_write_is_unknown_unless_it_was_certainly_not_done(
    error: Exception, closing: bool, expected: type[MetadataError]
) -> None:
    assert type(translate(error, Create("/a"), closing=closing)) is expected


def test_a_read_is_never_unknown() -> None:
    assert type(translate(kazoo.ConnectionLoss(), Get("/a"), closing=False)) is MetadataUnavailableError


def test_a_transaction_that_failed_without_saying_where_is_unknown() -> None:
    request = Transact((Create("/a"), Delete("/b"), Check("/c"), Put("/d", b"")))
    outcome = transaction_results(request, [kazoo.RolledBackError()] * 4)
    assert isinstance(outcome, OutcomeUnknownError)


def test_a_node_that_somebody_made_without_a_value_is_empty() -> None:
    assert node_of(None, ZnodeStat(1, 1, 10, 20, 3, 0, 0, 0, 0, 0, 1)).value == b""


async def test_what_threads_post_arrives_on_the_loop_complete_and_in_order() -> None:
    handler = LoopHandler(asyncio.get_running_loop(), None)
    got: list[tuple[int, int]] = []
    here = threading.get_ident()
    elsewhere: list[int] = []

    def take(lane: int, number: int) -> None:
        got.append((lane, number))
        if threading.get_ident() != here:
            elsewhere.append(number)

    threads = [
        threading.Thread(target=lambda lane=lane: [handler.post(take, lane, n) for n in range(5_000)])
        for lane in (0, 1)
    ]
    for thread in threads:
        thread.start()
    await until(lambda: len(got) == 10_000, "everything arrived")
    for thread in threads:
        thread.join()
    assert elsewhere == []
    for lane in (0, 1):
        assert [number for got_lane, number in got if got_lane == lane] == list(range(5_000))


async def test_a_callback_that_fails_does_not_hold_up_the_next(caplog: pytest.LogCaptureFixture) -> None:
    handler = LoopHandler(asyncio.get_running_loop(), None)
    done = asyncio.Event()
    handler.post(lambda: 1 // 0)
    handler.post(done.set)
    async with asyncio.timeout(5):
        await done.wait()
    assert "ZeroDivisionError" in caplog.text


def test_each_link_of_a_result_is_called_once_whoever_is_first() -> None:
    for _ in range(300):
        result, calls = Result(), list[Any]()
        barrier = threading.Barrier(2)

        def set_it(result: Result = result, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            result.set(1)

        thread = threading.Thread(target=set_it)
        thread.start()
        barrier.wait()
        result.rawlink(calls.append)
        thread.join()
        assert calls == [result]


def test_without_kazoo_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'magnetar\[zookeeper\]'"):
        importlib.reload(magnetar.metadata.zookeeper)
