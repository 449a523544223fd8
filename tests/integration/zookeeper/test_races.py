from __future__ import annotations

import asyncio
import json
import sys

from magnetar.errors import MetadataUnavailableError
from magnetar.metadata.store import WatchKind
from magnetar.testing.processes.zookeeper import ZooKeeperServer
from magnetar.testing.waiting import until
from tests.contracts.metadata_harness import Recorder
from tests.integration.zookeeper.harness import ZooKeeperHarness, connect_to

CONTESTANT = """
import asyncio, json, sys
from magnetar.config.metadata import MetadataConfig, ZooKeeperConfig
from magnetar.errors import NodeExistsError
from magnetar.metadata.zookeeper.store import connect_zookeeper
from magnetar.runtime.system import SystemRuntime

async def main(url, me):
    async with await connect_zookeeper(MetadataConfig(url=url), ZooKeeperConfig(), SystemRuntime()) as store:
        sys.stdout.write("ready\\n"); sys.stdout.flush()
        sys.stdin.readline()
        won = []
        for number in range(100):
            try:
                await store.create(f"/n{number}", me.encode())
                won.append(number)
            except NodeExistsError:
                pass
        print(json.dumps(won), flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_of_two_processes_that_create_the_same_node_exactly_one_wins(
    zookeeper: ZooKeeperServer, chroot: str
) -> None:
    url = f"{zookeeper.url}{chroot}"
    pipe = asyncio.subprocess.PIPE
    processes = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", CONTESTANT, url, me, stdin=pipe, stdout=pipe)
        for me in ("a", "b")
    ]
    try:
        async with asyncio.timeout(60):
            for process in processes:
                assert process.stdout is not None
                assert await process.stdout.readline() == b"ready\n"
            outputs = await asyncio.gather(*(process.communicate(b"go\n") for process in processes))
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
                await process.wait()
    won = [json.loads(output) for output, _ in outputs]
    assert sorted(won[0] + won[1]) == list(range(100))
    async with await connect_to(url) as store:
        for winner, numbers in zip((b"a", b"b"), won, strict=True):
            for number in numbers:
                node = await store.get(f"/n{number}")
                assert node is not None
                assert node.value == winner


async def test_watching_a_node_that_comes_and_goes_loses_no_change(harness: ZooKeeperHarness) -> None:
    """Each read is made because the watch that the read before it had armed fired; the last must show the end."""
    store, other = await harness.connect(), await harness.connect()
    last_seen: list[bytes | None] = []
    changed = asyncio.Event()

    async def follow() -> None:
        while True:
            changed.clear()
            try:
                node = await store.get("/blink", watch=lambda _: changed.set())
            except MetadataUnavailableError:  # It came and went ten times between two questions.
                continue
            last_seen.append(node and node.value)
            await changed.wait()

    following = asyncio.ensure_future(follow())
    for number in range(200):
        await other.create("/blink", str(number).encode())
        await other.delete("/blink")
    await other.create("/blink", b"the last")
    await until(lambda: last_seen and last_seen[-1] == b"the last", "the last change was seen")
    following.cancel()
    await asyncio.wait([following])


async def test_a_reader_that_gave_up_is_not_called(harness: ZooKeeperHarness) -> None:
    store, other = await harness.connect(), await harness.connect()
    await store.create("/a")
    gone, stays = Recorder(), Recorder()
    abandoned = asyncio.ensure_future(store.get("/a", watch=gone.on_event))
    await asyncio.sleep(0)
    abandoned.cancel()
    await store.get("/a", watch=stays.on_event)
    await other.put("/a", b"1")
    await until(lambda: stays.events, "the one who stays is told")
    assert gone.events == []


async def test_one_function_that_watches_twice_is_called_twice(harness: ZooKeeperHarness) -> None:
    store, other = await harness.connect(), await harness.connect()
    await store.create("/a")
    recorder = Recorder()
    await store.get("/a", watch=recorder.on_event)
    await store.get("/a", watch=recorder.on_event)
    await other.put("/a", b"1")
    await until(lambda: len(recorder.events) == 2, "both watches fired")
    assert {event.kind for event in recorder.events} == {WatchKind.CHANGED}


async def test_a_watcher_that_fails_does_not_keep_others_from_being_called(harness: ZooKeeperHarness) -> None:
    store, other = await harness.connect(), await harness.connect()
    reported: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["message"]))
    await store.create("/a")
    recorder = Recorder()
    await store.get("/a", watch=lambda _: 1 // 0)  # type: ignore[arg-type,return-value]
    await store.get("/a", watch=recorder.on_event)
    await other.put("/a", b"1")
    await until(lambda: recorder.events and reported, "the other was called and the failure reported")
    assert "/a" in reported[0]
