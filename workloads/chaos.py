"""Faults of real processes, one after the other, while a writer is under load.

Promise:   at most one bookie is down or hangs at a time, and the next fault waits until all are registered again: with
           Qa = 2 nothing that was acknowledged may be lost, and the load must always go on.
Rounds:    each round has every fault once, in an order of its own; victims are mostly bookies that are written to now.
Progress:  after every fault new acknowledgements must come, within `PROGRESS_TIMEOUT_S`.
Random:    the seed decides faults, victims and moments. What happens between them is up to the machine.
Read next: workloads/ledger_load.py, workloads/ledger_check.py
"""

from __future__ import annotations

import asyncio
import enum
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from magnetar.errors import LedgerFencedError, ProcessFailedError
from magnetar.ledger.client import LedgerClient
from magnetar.testing.processes.cluster import ProcessCluster
from magnetar.testing.processes.servers import BookieProcess
from magnetar.testing.waiting import until
from workloads.ledger_load import RATE
from workloads.ledger_writer import Stream, WriterProcess

ADD_TIMEOUT_MS: Final = 2_000
SESSION_TIMEOUT_MS: Final = 2_500
BRIEFLY_S: Final = (0.1, 1.0)  # Shorter than every timeout: the bookie is slow, and nothing more.
LONG_S: Final = (3.0, 4.5)  # Longer than the add timeout and the bookie's session.
DOWN_S: Final = (0.0, 1.5)
SETTLE_S: Final = (0.1, 0.7)
PROGRESS_TIMEOUT_S: Final = 60.0
PROGRESS_ENTRIES: Final = 100

WRITER_SETTINGS: Final = (f"ledger.add_timeout_ms={ADD_TIMEOUT_MS}",)
# Small caches and files, so that flushes, log rolls and journal rolls are part of it.
BOOKIE_SETTINGS: Final = (
    f"metadata.session_timeout_ms={SESSION_TIMEOUT_MS}",
    "storage.write_cache_bytes_max=1048576",
    "storage.log_bytes_max=8388608",
    "journal.file_bytes_max=4194304",
    "journal.group_bytes_max=262144",
    "journal.preallocated_bytes=262144",
)


class Fault(enum.Enum):
    BOOKIE_KILLED = "bookie killed"
    BOOKIE_PAUSED_BRIEFLY = "bookie paused briefly"
    BOOKIE_PAUSED_LONG = "bookie paused long"
    WRITER_KILLED = "writer killed"
    WRITER_AND_BOOKIE_KILLED = "writer and bookie killed"
    WRITER_KILLED_IN_PAUSE = "writer killed while a bookie hangs"
    WRITER_DEPOSED = "writer paused, replaced, resumed"


class Chaos:
    """Owns the writers. The cluster and the client, which is only used to see who is registered, are its caller's."""

    def __init__(self, cluster: ProcessCluster, client: LedgerClient, directory: Path, seed: int) -> None:
        self.stream = Stream()
        self.faults: Counter[str] = Counter()
        self.longest_takeover_s = 0.0
        """From the end of a writer to the first acknowledgement of the next one, which starts as a new process."""
        self._cluster = cluster
        self._client = client
        self._log = directory / "writer.log"
        self._random = random.Random(seed)
        self._writers: list[WriterProcess] = []
        self._start_writer()
        self._do: dict[Fault, Callable[[], Awaitable[None]]] = {
            Fault.BOOKIE_KILLED: self._kill_bookie,
            Fault.BOOKIE_PAUSED_BRIEFLY: lambda: self._pause_bookie(BRIEFLY_S),
            Fault.BOOKIE_PAUSED_LONG: lambda: self._pause_bookie(LONG_S),
            Fault.WRITER_KILLED: self._kill_writer,
            Fault.WRITER_AND_BOOKIE_KILLED: self._kill_both,
            Fault.WRITER_KILLED_IN_PAUSE: self._kill_writer_in_pause,
            Fault.WRITER_DEPOSED: self._depose_writer,
        }

    async def run(self, seconds: float) -> None:
        """For so long; at least one whole round. At its end the writer closes its ledger."""
        ends_at = time.monotonic() + seconds
        await self._wait_progress()
        while time.monotonic() < ends_at:
            for fault in self._random.sample(list(Fault), len(Fault)):
                await self._do[fault]()
                self.faults[fault.value] += 1
                await self._wait_whole()
                await self._sleep(SETTLE_S)
                if time.monotonic() >= ends_at and len(self.faults) == len(Fault):
                    break
        self._writer.stop()

    def end(self) -> None:
        """Kills every writer that is left. For when all is over, however it ended."""
        for writer in self._writers:
            writer.kill()

    # --- the faults ---------------------------------------------------------------------------------------------------

    async def _kill_bookie(self) -> None:
        victim = self._victim()
        victim.kill()
        await self._wait_progress()
        await self._sleep(DOWN_S)
        victim.start()

    async def _pause_bookie(self, lasting: tuple[float, float]) -> None:
        victim = self._victim()
        victim.pause()
        await self._sleep(lasting)
        victim.resume()
        await self._wait_progress()

    async def _kill_both(self) -> None:
        """At the same moment, as when a machine with both of them fails: recovery must do without the bookie."""
        victim = self._victim()
        victim.kill()
        await self._kill_writer()
        await self._sleep(DOWN_S)
        victim.start()

    async def _kill_writer_in_pause(self) -> None:
        """So that entries are under way that one bookie does not have, and recovery meets a bookie that hangs."""
        victim = self._victim()
        victim.pause()
        await self._sleep(BRIEFLY_S)
        await self._kill_writer()
        victim.resume()

    async def _kill_writer(self) -> None:
        await self._replace_writer(self._writer.kill())

    async def _depose_writer(self) -> None:
        """It hangs, another takes its ledger, and it comes back: what it still acknowledges must be in the ledger."""
        deposed = self._writer
        deposed.pause()
        await self._sleep(BRIEFLY_S)
        await self._replace_writer(time.monotonic())
        deposed.resume()
        await until(lambda: not deposed.is_running, "the deposed writer ends", seconds=PROGRESS_TIMEOUT_S)
        deposed.wait_ended()
        if not (deposed.failure or "").startswith(LedgerFencedError.__name__):
            raise ProcessFailedError(f"a deposed writer did not end as fenced: {deposed.failure}")

    async def _replace_writer(self, gone_at: float) -> None:
        ledgers = len(self.stream.ledgers)
        self._start_writer()
        await self._wait_until(lambda: len(self.stream.ledgers) > ledgers, "the next writer has a ledger")
        await self._wait_progress()
        first_ack_at = self.stream.last.first_ack_at
        assert first_ack_at is not None
        self.longest_takeover_s = max(self.longest_takeover_s, first_ack_at - gone_at)

    # --- parts --------------------------------------------------------------------------------------------------------

    @property
    def _writer(self) -> WriterProcess:
        return self._writers[-1]

    def _start_writer(self) -> None:
        writer = WriterProcess(self._cluster.metadata, self.stream, self._log, WRITER_SETTINGS, rate=RATE)
        self._writers.append(writer)

    def _victim(self) -> BookieProcess:
        bookies = self._cluster.bookies
        written_to = [bookie for bookie in bookies if bookie.bookie_id in self.stream.bookies]
        return self._random.choice(written_to if self._random.random() < 0.8 else bookies)

    async def _sleep(self, bounds: tuple[float, float]) -> None:
        """Not a wait for anything: the moment is the random input."""
        await asyncio.sleep(self._random.uniform(*bounds))

    async def _wait_progress(self) -> None:
        wanted = self.stream.acknowledged + PROGRESS_ENTRIES
        await self._wait_until(lambda: self.stream.acknowledged >= wanted, "new acknowledgements")

    async def _wait_until(self, condition: Callable[[], bool], what: str) -> None:
        def is_so() -> bool:
            self._writer.check()
            return condition()

        await until(is_so, what, seconds=PROGRESS_TIMEOUT_S)

    async def _wait_whole(self) -> None:
        ids = [bookie.bookie_id for bookie in self._cluster.bookies]
        await until(
            lambda: all(bookie_id in self._client.bookies.candidates().writable for bookie_id in ids),
            "all bookies are registered",
            seconds=PROGRESS_TIMEOUT_S,
        )
