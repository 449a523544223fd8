"""A server that is missing, goes away, comes back, or is silent."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from magnetar.config.metadata import MetadataConfig
from magnetar.config.root import Config
from magnetar.errors import (
    MetadataError,
    MetadataUnavailableError,
    NodeExistsError,
    OutcomeUnknownError,
    StoreClosedError,
    ValueTooLargeError,
)
from magnetar.metadata.open import open_store
from magnetar.metadata.store import CreateMode, SessionState
from magnetar.metadata.zookeeper.client import Result
from magnetar.runtime.system import SystemRuntime
from magnetar.testing.processes.child import free_port
from magnetar.testing.processes.zookeeper import ZooKeeperServer
from magnetar.testing.waiting import until
from tests.contracts.metadata_harness import CONTRACT_CONFIG, Recorder
from tests.integration.zookeeper.harness import ZooKeeperHarness, connect_to


async def test_a_server_that_is_down_at_start_is_reported_with_its_name_and_what_to_check() -> None:
    port = free_port("127.0.0.1")
    with pytest.raises(MetadataUnavailableError) as caught:
        await connect_to(f"zk://127.0.0.1:{port}/x", connect_timeout_ms=300)
    message = str(caught.value)
    assert f"127.0.0.1:{port}" in message
    assert "Connection refused" in message
    assert "Check that a server runs there" in message


async def test_a_server_whose_name_does_not_resolve_is_reported() -> None:
    with pytest.raises(MetadataUnavailableError, match=r"nowhere\.invalid"):
        await connect_to("zk://nowhere.invalid:2181", connect_timeout_ms=300)


async def test_of_several_servers_one_that_runs_is_enough(zookeeper: ZooKeeperServer, chroot: str) -> None:
    dead = free_port("127.0.0.1")
    async with await connect_to(f"zk://127.0.0.1:{dead},{zookeeper.address}{chroot}") as store:
        assert await store.create("/a") == "/a"


async def test_a_server_stopped_and_started_again_keeps_session_nodes_and_ephemerals(
    own_server: ZooKeeperServer,
) -> None:
    recorder = Recorder()
    async with await connect_to(f"{own_server.url}/c", session_timeout_ms=20_000) as store:
        store.session.listen(recorder.on_state)
        session_id = store.session.id
        await store.create("/kept", b"1")
        await store.create("/mine", mode=CreateMode.EPHEMERAL)
        await asyncio.to_thread(own_server.stop)
        await until(lambda: not store.session.state.is_usable, "the store knows")
        waiting = asyncio.ensure_future(store.put("/kept", b"2"))
        await own_server.start_async()
        assert await waiting == 1
        node = await store.get("/mine")
        assert node is not None
        assert (node.owner, store.session.id) == (session_id, session_id)
    assert recorder.states == [SessionState.DISCONNECTED, SessionState.CONNECTED, SessionState.CLOSED]


async def test_an_outage_longer_than_the_session_timeout_ends_the_session(harness: ZooKeeperHarness) -> None:
    other = await harness.connect()
    store = await harness.connect(dataclasses.replace(CONTRACT_CONFIG, session_timeout_ms=1_000))
    await store.create("/mine", mode=CreateMode.EPHEMERAL)
    old = store.session.id
    recorder = Recorder()
    store.session.listen(recorder.on_state)
    await harness.interrupt(store)

    async def is_gone() -> bool:
        return await other.get("/mine") is None

    await until(is_gone, "the server ended the session")
    await harness.restore(store)
    assert recorder.states == [SessionState.DISCONNECTED, SessionState.EXPIRED, SessionState.REESTABLISHED]
    assert store.session.id != old


async def test_acknowledged_writes_survive_kill_9_of_the_server(own_server: ZooKeeperServer) -> None:
    acknowledged: list[str] = []
    async with await connect_to(f"{own_server.url}/c", session_timeout_ms=20_000) as store:

        async def write(lane: int) -> None:
            number = 0
            while True:
                try:
                    acknowledged.append(await store.create(f"/n-{lane}-{number}"))
                except OutcomeUnknownError:
                    return
                number += 1

        writers = [asyncio.ensure_future(write(lane)) for lane in range(20)]
        await until(lambda: len(acknowledged) > 200, "some writes were done")
        own_server.kill()
        await asyncio.wait(writers, timeout=30)
        await own_server.start_async()
        names = await store.children("/")
        assert {path[1:] for path in acknowledged} <= set(names)


async def test_the_loop_is_never_held_up_by_a_server_that_says_nothing(own_server: ZooKeeperServer) -> None:
    """More requests than the pipe to kazoo's thread would hold."""
    async with await connect_to(
        f"{own_server.url}/c", session_timeout_ms=10_000, operation_timeout_ms=5_000, operations_in_flight_max=10_000
    ) as store:
        own_server.pause()
        try:
            writes = [asyncio.ensure_future(store.create(f"/n{n}", bytes(1_000))) for n in range(2_000)]
            for _ in range(10):
                await asyncio.sleep(0)
            # A loop that waits for the server comes here when the time of an operation or of the session is over.
            assert not any(write.done() for write in writes)
            assert store.session.state is SessionState.CONNECTED
            await asyncio.wait(writes)
        finally:
            own_server.resume()
        outcomes = {type(write.exception()) for write in writes}
        assert outcomes <= {OutcomeUnknownError, MetadataUnavailableError}
        await until(lambda: store.session.state.is_usable, "the store is usable again")
        assert await store.get("/") is not None


async def test_closing_while_the_server_says_nothing_ends_in_bounded_time(own_server: ZooKeeperServer) -> None:
    store = await connect_to(f"{own_server.url}/c", session_timeout_ms=1_000)
    own_server.pause()
    try:
        asked = asyncio.ensure_future(store.get("/"))
        await asyncio.sleep(0)
        async with asyncio.timeout(10):
            await store.aclose()
            with pytest.raises((MetadataUnavailableError, StoreClosedError)):
                await asked
    finally:
        own_server.resume()


async def test_what_was_sent_before_closing_is_still_answered(harness: ZooKeeperHarness) -> None:
    store, other = await harness.connect(), await harness.connect()
    writes = [asyncio.ensure_future(store.create(f"/n{n}")) for n in range(50)]
    await asyncio.sleep(0)
    await store.aclose()
    outcomes = await asyncio.gather(*writes, return_exceptions=True)
    await other.sync()
    there = set(await other.children("/"))
    for number, outcome in enumerate(outcomes):
        if isinstance(outcome, str):
            assert outcome[1:] in there
        elif not isinstance(outcome, OutcomeUnknownError):
            assert isinstance(outcome, MetadataError)
            assert f"n{number}" not in there


async def test_a_value_that_is_too_large_never_reaches_the_server(harness: ZooKeeperHarness) -> None:
    store = await harness.connect()
    proxy = harness.proxy_of(store)
    proxy.lose_request()  # Whatever is sent now breaks the connection.
    recorder = Recorder()
    store.session.listen(recorder.on_state)
    with pytest.raises(ValueTooLargeError):
        await store.create("/large", bytes(1_000_001))
    assert recorder.states == []
    with pytest.raises(MetadataUnavailableError):
        await store.get("/")


async def test_the_session_timeout_is_the_one_the_server_grants(own_server: ZooKeeperServer) -> None:
    async with await connect_to(own_server.url, session_timeout_ms=300) as store:
        assert store.session.timeout_ms == 1_000


async def test_an_answer_that_makes_no_sense_is_survived_with_a_new_session(
    harness: ZooKeeperHarness, caplog: pytest.LogCaptureFixture
) -> None:
    store = await harness.connect()
    store.client._pending.append((None, Result(), 7))  # As if we had asked something before; no answer has this number.
    with pytest.raises(OutcomeUnknownError):
        await store.create("/a")
    await until(lambda: store.session.generation == 1, "a new session is there")
    assert await store.get("/") is not None
    assert "starting over" in caplog.text


async def test_a_chroot_may_be_absent_and_the_root_is_still_there(zookeeper: ZooKeeperServer) -> None:
    async with await connect_to(zookeeper.url) as store:
        assert await store.get("/") is not None
        assert "zookeeper" in await store.children("/")
        with pytest.raises(NodeExistsError):
            await store.create("/")


async def test_a_url_that_begins_with_zk_opens_a_zookeeper_store(zookeeper: ZooKeeperServer, chroot: str) -> None:
    config = Config(metadata=MetadataConfig(url=f"{zookeeper.url}{chroot}"))
    async with await open_store(config, SystemRuntime()) as store:
        assert await store.create("/a") == "/a"
    async with await connect_to(zookeeper.url) as whole:
        assert await whole.get(f"{chroot}/a") is not None


async def test_two_that_make_one_chroot_at_once_both_get_it(zookeeper: ZooKeeperServer, chroot: str) -> None:
    stores = await asyncio.gather(*(connect_to(f"{zookeeper.url}{chroot}/deep/er") for _ in range(4)))
    for number, store in enumerate(stores):
        assert await store.create(f"/n{number}") == f"/n{number}"
        await store.aclose()
