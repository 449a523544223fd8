"""Load on one metadata store: `kazoo HOSTS` is the bare loop, `store URL IN_FLIGHT` is ours."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator

import uvloop
from kazoo.client import KazooClient

from bench.interleave import serve_samples
from magnetar.config.metadata import MetadataConfig
from magnetar.config.root import Config
from magnetar.errors import NodeExistsError
from magnetar.metadata.open import open_store
from magnetar.metadata.store import MetadataStore
from magnetar.runtime.system import SystemRuntime

VALUE = bytes(300)
NODES = 100


def paths(first: int) -> Iterator[str]:
    at = first
    while True:
        yield f"/n{at % NODES}"
        at += 1


def run_kazoo(hosts: str) -> None:
    client = KazooClient(f"{hosts}/bare")
    client.start()
    for path in (f"/n{n}" for n in range(NODES)):
        client.ensure_path(path)

    def sample(seconds: float) -> tuple[float, float]:
        done = 0
        began, cpu = time.perf_counter(), time.process_time()
        for path in paths(0):
            client.set(path, VALUE)
            client.get(path)
            done += 2
            if time.perf_counter() - began >= seconds:
                break
        elapsed = time.perf_counter() - began
        return done / elapsed, (time.process_time() - cpu) / elapsed

    serve_samples(sample)
    client.stop()
    client.close()


def run_store(url: str, in_flight: int) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        store = runner.run(_open(url))
        serve_samples(lambda seconds: runner.run(_sample(store, in_flight, seconds)))
        runner.run(store.aclose())


async def _open(url: str) -> MetadataStore:
    store = await open_store(Config(metadata=MetadataConfig(url=url)), SystemRuntime())
    for n in range(NODES):
        try:
            await store.create(f"/n{n}", VALUE, make_parents=True)
        except NodeExistsError:
            continue
    return store


async def _sample(store: MetadataStore, in_flight: int, seconds: float) -> tuple[float, float]:
    began, cpu = time.perf_counter(), time.process_time()

    async def work(first: int) -> int:
        done = 0
        for path in paths(first):
            await store.put(path, VALUE)
            await store.get(path)
            done += 2
            if time.perf_counter() - began >= seconds:
                break
        return done

    done = sum(await asyncio.gather(*(work(n) for n in range(in_flight))))
    elapsed = time.perf_counter() - began
    return done / elapsed, (time.process_time() - cpu) / elapsed


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["kazoo", hosts]:
            run_kazoo(hosts)
        case ["store", url, in_flight]:
            run_store(url, int(in_flight))
        case _:
            sys.exit(__doc__)
