"""`python -m demo.ledger`: what is below topics; a bookie and a writer are killed, and the replicas come back.

Tells what it does while it does it, prints the table, and exits 1 if anything that was acknowledged is not there.

Ends:      every process it starts is killed at the end, by the kernel if need be; the directory is removed.
Read next: workloads/ledger_load.py (the writer), workloads/ledger_check.py (what is counted), repair.py
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from demo.repair import follow_repair
from demo.shell import Narrator, print_figures, run_demo
from magnetar.config.metadata import MetadataConfig
from magnetar.config.root import Config
from magnetar.errors import ProcessFailedError
from magnetar.ledger.client import LedgerClient
from magnetar.metadata.open import open_store
from magnetar.runtime.system import SystemRuntime
from magnetar.testing.processes.child import wait_for
from magnetar.testing.processes.cluster import ProcessCluster
from magnetar.testing.processes.servers import MAGNETAR
from workloads.ledger_check import Tally, read_back
from workloads.ledger_load import ACK_QUORUM, IN_FLIGHT, WRITE_QUORUM
from workloads.ledger_writer import Stream, WriterProcess

BOOKIES = 4
RATE = 3_000  # Entries a second: a load that a laptop's disk can take.
ENTRIES_PER_STEP = 5_000
STEP_TIMEOUT_S = 120.0  # Two seconds on an idle machine; the rest is for a busy one.
SESSION_MS = 6_000  # A killed bookie looks alive for so long: ZooKeeper waits for its session to end.
SETTINGS = (f"metadata.session_timeout_ms={SESSION_MS}",)


class Demo:
    def __init__(self, directory: Path, console: Console) -> None:
        self._directory = directory
        self._say = Narrator(console).say
        self._stream = Stream()
        self._writer: WriterProcess | None = None
        self._victim = ""

    def run(self) -> Tally:
        self._say(f"starting a ZooKeeper server and {BOOKIES} bookies, each a process of its own")
        with ProcessCluster(self._directory, BOOKIES, SETTINGS) as cluster:
            self._say(f"bookies {', '.join(bookie.bookie_id for bookie in cluster.bookies)} are registered")
            try:
                self._write(cluster)
                self._kill_a_bookie(cluster)
                self._kill_the_writer(cluster)
                self._finish()
            finally:
                if self._writer is not None:
                    self._writer.kill()
            asyncio.run(self._heal(cluster))
            self._count_replicas(cluster)
            return asyncio.run(self._read_back(cluster))

    # --- the steps ----------------------------------------------------------------------------------------------------

    def _write(self, cluster: ProcessCluster) -> None:
        self._start_writer(cluster)
        self._wait_acknowledged(1)
        self._say(
            f"a writer appends to ledger {self._stream.last.ledger_id}: each entry goes to {WRITE_QUORUM} bookies, and "
            f"is acknowledged when {ACK_QUORUM} of them have it on disk"
        )
        self._wait_acknowledged(ENTRIES_PER_STEP)
        self._say(f"{self._stream.acknowledged:,} entries are acknowledged")

    def _kill_a_bookie(self, cluster: ProcessCluster) -> None:
        before = self._stream.bookies
        victim = before[0]
        cluster.bookie(victim).kill()
        self._victim = victim
        self._say(f"kill -9 bookie {victim}, which is being written to; it stays dead")
        self._wait(lambda: victim not in self._stream.bookies, "another bookie in its place")
        self._wait_acknowledged(ENTRIES_PER_STEP)
        (successor,) = [bookie for bookie in self._stream.bookies if bookie not in before]
        self._say(
            f"bookie {successor} took its place; the writer went on, now at {self._stream.acknowledged:,} "
            f"(longest wait for an acknowledgement: {self._stream.longest_stall_s * 1000:.0f} ms)"
        )

    def _kill_the_writer(self, cluster: ProcessCluster) -> None:
        assert self._writer is not None
        self._writer.kill()
        left = self._stream.last
        self._say(
            f"kill -9 the writer, with up to {IN_FLIGHT} entries under way; it leaves ledger {left.ledger_id} open"
        )
        self._start_writer(cluster)
        self._wait(lambda: self._stream.last is not left, "the next writer's ledger")
        kept = self._stream.recovered[left.ledger_id] + 1 - left.acknowledged
        self._say(
            f"another writer has recovered it: closed after entry {self._stream.recovered[left.ledger_id]} "
            f"({kept} of those under way were kept), and goes on in ledger {self._stream.last.ledger_id}"
        )
        self._wait_acknowledged(ENTRIES_PER_STEP)

    def _finish(self) -> None:
        assert self._writer is not None
        self._writer.stop()
        self._say(f"the writer has closed its ledger; a client that knows nothing of it reads {self._ledgers()}")

    async def _read_back(self, cluster: ProcessCluster) -> Tally:
        config, runtime = Config(metadata=MetadataConfig(url=cluster.metadata)), SystemRuntime()
        async with await open_store(config, runtime) as store, LedgerClient(store, config, runtime) as client:
            tally = Tally()
            await read_back(client, self._stream, tally)
        self._say(f"{tally.read:,} entries read back, every byte compared")
        return tally

    async def _heal(self, cluster: ProcessCluster) -> None:
        """Auto-recovery, which runs inside the bookies, gives the killed bookie's entries to the others."""
        self._say(f"nothing brings bookie {self._victim} back; auto-recovery copies what it had to the others")
        async with asyncio.timeout(STEP_TIMEOUT_S):
            await follow_repair(cluster.metadata, self._victim, str, self._say, lambda: None)

    def _count_replicas(self, cluster: ProcessCluster) -> None:
        command = [*MAGNETAR, "recovery", "check", "--every-entry", "--json", "--metadata", cluster.metadata]
        done = subprocess.run(  # noqa: S603 - our own command
            command, capture_output=True, text=True, timeout=STEP_TIMEOUT_S, check=False
        )
        found = json.loads(done.stdout) if done.returncode == 0 else {}
        if done.returncode or found["faulty_ledgers"]:
            raise ProcessFailedError(f"replicas are missing: {found or done.stderr}")
        self._say(f"`magnetar recovery check --every-entry` has read {found['verified']:,} replicas: all are well")

    # --- parts --------------------------------------------------------------------------------------------------------

    def _start_writer(self, cluster: ProcessCluster) -> None:
        self._writer = WriterProcess(cluster.metadata, self._stream, self._directory / "writer.log", rate=RATE)

    def _ledgers(self) -> str:
        return " and ".join(f"ledger {written.ledger_id}" for written in self._stream.ledgers)

    def _wait_acknowledged(self, more: int) -> None:
        wanted = self._stream.acknowledged + more
        self._wait(lambda: self._stream.acknowledged >= wanted, f"the acknowledgement of {more:,} more entries")

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        def is_so() -> bool:
            assert self._writer is not None
            self._writer.check()
            return condition()

        wait_for(is_so, what=what, timeout=STEP_TIMEOUT_S)


def print_verdict(tally: Tally, console: Console) -> None:
    figures = {
        "acknowledged": tally.acknowledged,
        "read": tally.read,
        "lost": tally.lost,
        "duplicated": tally.duplicated,
        "out of order": tally.out_of_order,
    }
    print_figures("a bookie and a writer were killed with -9", figures, tally.notes, console)
    more = tally.read - tally.acknowledged
    if tally.passed:
        console.print(
            f"passed: everything acknowledged is there, once and in order. {more:,} more entries were under way when "
            "the writer was killed, and recovery kept them."
        )
    else:
        console.print("FAILED: the ledgers are not what was acknowledged.")


if __name__ == "__main__":
    run_demo(lambda directory, console: Demo(directory, console).run(), print_verdict)
