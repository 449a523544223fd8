"""Load on a cluster through our ledger client: requests and answers are those of interop/java/BookieBench.java.

One request a line on stdin, one answer a line on stdout, on uvloop; ends when stdin closes. A fixed number of adds is
kept in flight with the writer's futures (closed loop). Latency is from the call to when whoever waits for the oldest
future is woken; every one is kept, so quantiles are exact.
Read next: ledger_generator.py (the other end), ledger.py (the rows)
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import random
import sys
import time
from array import array
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import uvloop

from interop.ledger.ours import our_client
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.reading.reader import LedgerReader
from magnetar.ledger.writing.writer import LedgerWriter
from magnetar.wire.bookkeeper.digests import Entry

TIMEOUT_MS = 60_000  # As the Java generator's: a slow disk is measured, not punished.
READ_BYTES = 1_000_000  # Of one read call.
READS_IN_FLIGHT = 4
CREATES_IN_FLIGHT = 100

log = logging.getLogger(__name__)

Request = dict[str, Any]


class Worker:
    def __init__(self) -> None:
        self._clients: dict[str, tuple[AsyncExitStack, LedgerClient]] = {}
        self._kept: dict[str, LedgerWriter] = {}
        self.operations: dict[str, Callable[[Request], Awaitable[Any]]] = {
            "add": self.add,
            "addFresh": self.add_fresh,
            "read": self.read,
            "leaveOpen": self.leave_open,
            "recover": self.recover,
            "disconnect": self.disconnect,
        }

    async def _client(self, r: Request) -> LedgerClient:
        if r["zookeeper"] not in self._clients:
            stack = AsyncExitStack()
            patience = {
                "add_timeout_ms": TIMEOUT_MS,
                "add_quorum_timeout_ms": TIMEOUT_MS,
                "read_timeout_ms": TIMEOUT_MS,
            }
            client = await stack.enter_async_context(our_client(r["zookeeper"], **patience))
            self._clients[r["zookeeper"]] = (stack, client)
        return self._clients[r["zookeeper"]][1]

    async def disconnect(self, r: Request) -> None:
        self._kept.clear()
        if r["zookeeper"] in self._clients:
            stack, _ = self._clients.pop(r["zookeeper"])
            await stack.aclose()

    async def _create(self, r: Request) -> LedgerWriter:
        client = await self._client(r)
        return await client.create(
            ensemble_size=r["ensemble"], write_quorum=r["writeQuorum"], ack_quorum=r["ackQuorum"]
        )

    # --- adds ---------------------------------------------------------------------------------------------------------

    async def add(self, r: Request) -> dict[str, Any]:
        """To a ledger of this sample only, or with `keep` to an open one that later samples of that name go on with."""
        assert r["ledgers"] == 1, "only one ledger at a time"
        writer = self._kept.get(r.get("keep", "")) or await self._create(r)
        load = Load(r)
        cpu, began = time.process_time(), time.perf_counter()
        await load.run(writer, began + r["seconds"], r["entriesMax"])
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        if "keep" in r:
            self._kept[r["keep"]] = writer
        else:
            await _close(writer)
        return {"ledgerId": writer.ledger_id, **load.result(seconds, cpu)}

    async def add_fresh(self, r: Request) -> dict[str, Any]:
        """To one new ledger after the other, each up to `entriesPerLedger`. Time and CPU are of the adds alone."""
        load = Load(r)
        seconds = cpu = 0.0
        while seconds < r["seconds"]:
            writer = await self._create(r)
            cpu_before, began = time.process_time(), time.perf_counter()
            await load.run(writer, math.inf, r["entriesPerLedger"])
            seconds += time.perf_counter() - began
            cpu += time.process_time() - cpu_before
            await _close(writer)
        return load.result(seconds, cpu)

    # --- reads --------------------------------------------------------------------------------------------------------

    async def read(self, r: Request) -> dict[str, Any]:
        """A closed ledger from its first entry on, and again from there when it ends before the time is over."""
        reader = await (await self._client(r)).open(r["ledgerId"])
        cpu, began = time.process_time(), time.perf_counter()
        entries = await _read_over_and_over(reader, r["size"], began + r["seconds"])
        seconds = time.perf_counter() - began
        return {"entries": entries, "seconds": seconds, "cpuSeconds": time.process_time() - cpu}

    # --- recovery -----------------------------------------------------------------------------------------------------

    async def leave_open(self, r: Request) -> list[int]:
        await self._client(r)  # Once, before many ask for it.
        payload = bytes(r["size"])

        async def leave(_: int) -> int:
            writer = await self._create(r)
            for future in [writer.enqueue(payload) for _ in range(r["entries"])]:
                await future
            await writer.release()
            return writer.ledger_id

        return await _some_at_a_time(leave, list(range(r["ledgers"])), CREATES_IN_FLIGHT)

    async def recover(self, r: Request) -> dict[str, Any]:
        """Each is fenced, recovered and closed. Counts ledgers where other samples count entries."""
        client = await self._client(r)

        async def recover(ledger_id: int) -> int:
            metadata = await client.recover(ledger_id)
            assert metadata.is_closed
            if metadata.last_entry_id != r["entries"] - 1:
                raise AssertionError(f"ledger {ledger_id} ends with entry {metadata.last_entry_id}")
            return ledger_id

        cpu, began = time.process_time(), time.perf_counter()
        recovered = await _some_at_a_time(recover, r["ledgerIds"], r["inFlight"])
        seconds = time.perf_counter() - began
        return {"entries": len(recovered), "seconds": seconds, "cpuSeconds": time.process_time() - cpu}


class Load:
    """Keeps adds in flight; counts, and keeps every latency."""

    def __init__(self, r: Request) -> None:
        self._in_flight: int = r["inFlight"]
        self._payload = random.Random(7).randbytes(r["size"])  # Noise: nothing on the way can compress it.
        self._latencies = array("d")

    async def run(self, writer: LedgerWriter, until: float, entries_max: int) -> None:
        clock, enqueue, payload, latencies = time.perf_counter, writer.enqueue, self._payload, self._latencies
        waiting: deque[tuple[float, asyncio.Future[int]]] = deque()
        left = entries_max
        while True:
            now = clock()
            if now < until:
                count = min(self._in_flight - len(waiting), left)
                left -= count
                for _ in range(count):
                    waiting.append((now, enqueue(payload)))
            if not waiting:
                return
            await waiting[0][1]
            now = clock()
            while waiting and waiting[0][1].done():
                began, future = waiting.popleft()
                future.result()
                latencies.append(now - began)

    def result(self, seconds: float, cpu: float) -> dict[str, Any]:
        latencies = sorted(self._latencies)
        return {
            "entries": len(latencies), "seconds": seconds, "cpuSeconds": cpu,
            "p50Ms": quantile(latencies, 0.5) * 1e3, "p99Ms": quantile(latencies, 0.99) * 1e3,
        }  # fmt: skip


def quantile(ordered: list[float], share: float) -> float:
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


async def _close(writer: LedgerWriter) -> None:
    """A replaced bookie would mean that one refused or failed, and the figure would be of something else."""
    if len(writer.metadata.fragments) != 1:
        raise AssertionError(f"a bookie of ledger {writer.ledger_id} was replaced meanwhile")
    await writer.close()


async def _read_over_and_over(reader: LedgerReader, size: int, until: float) -> int:
    chunk, last = max(1, READ_BYTES // size), reader.last_confirmed
    first = count = 0
    waiting: deque[asyncio.Task[list[Entry]]] = deque()
    while True:
        while len(waiting) < READS_IN_FLIGHT and time.perf_counter() < until:
            end = min(last, first + chunk - 1)
            waiting.append(asyncio.create_task(reader.read(first, end)))
            first = 0 if end == last else end + 1
        if not waiting:
            return count
        entries = await waiting.popleft()
        for entry in entries:
            if len(entry.payload) != size:
                raise AssertionError(f"entry {entry.entry_id} has a wrong length")
        count += len(entries)


async def _some_at_a_time(work: Callable[[int], Awaitable[int]], items: list[int], in_flight: int) -> list[int]:
    left = iter(items)

    async def take() -> list[int]:
        return [await work(item) for item in left]

    return [done for share in await asyncio.gather(*(take() for _ in range(in_flight))) for done in share]


async def main() -> None:
    worker = Worker()
    while line := await asyncio.to_thread(sys.stdin.readline):
        request = json.loads(line)
        try:
            answer = {"result": await worker.operations[request["op"]](request)}
        except Exception as error:
            log.exception("a request failed")
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    logging.basicConfig(handlers=[handler])
    uvloop.run(main())
