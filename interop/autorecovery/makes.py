"""Auto-recovery of both makes as processes, each with the auditor, the worker, or both of them.

Ours:      `magnetar autorecovery` has both, so whether it is the auditor depends on who was elected before. Our auditor
           without a worker exists in this process only, made from the classes that the service is made from.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

from interop.bookies import ROOT
from interop.java_program import JavaProgram
from magnetar.autorecovery.auditor import Auditor
from magnetar.autorecovery.election import Election
from magnetar.autorecovery.rate import ByteRate
from magnetar.autorecovery.repair import RepairTools
from magnetar.autorecovery.roster import Roster
from magnetar.config.metadata import MetadataConfig
from magnetar.config.root import Config
from magnetar.ledger.client import LedgerClient
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.bookkeeper.recovery_nodes import RecoveryPaths
from magnetar.metadata.open import open_store
from magnetar.runtime.system import SystemRuntime
from magnetar.runtime.uncancelled import end_task
from magnetar.testing.processes.servers import HOST, MAGNETAR, ServerProcess

SESSION_MS: Final = 4_000
GRACE_MS: Final = 1_000
OUR_NAME: Final = "ours:1"
APACHES_NAME: Final = "apaches:1"
_HTTP_TIMEOUT_S: Final = 10
_REPAIRED: Final = "magnetar_recovery_ledgers_repaired_total"


class ApacheRecovery(JavaProgram):
    """Apache's classes in a process. Nothing runs in it before `start`."""

    def __init__(self, directory: Path, zookeeper: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        super().__init__("AutoRecovery", directory)
        self._common: dict[str, Any] = {
            "zookeeper": zookeeper, "root": ROOT, "id": APACHES_NAME, "sessionMs": SESSION_MS, "graceMs": GRACE_MS,
        }  # fmt: skip

    async def begin(self, role: str) -> None:
        """`auditor`, `worker` or `both`."""
        await self.ask("start", role=role, **self._common)

    async def lock(self, ledger_id: int) -> None:
        await self.ask("lock", ledgerId=ledger_id, **self._common)

    async def unlock(self, ledger_id: int) -> None:
        await self.ask("unlock", ledgerId=ledger_id, **self._common)

    async def marks(self) -> dict[int, list[str]]:
        """The bookies that each mark names, as Apache's manager reads it."""
        found = await self.ask("marks", **self._common)
        return {int(ledger_id): replicas for ledger_id, replicas in found.items()}


class OurRecovery(ServerProcess):
    """`magnetar autorecovery`."""

    def __init__(self, directory: Path, zookeeper: str, *settings: str) -> None:
        ours = (
            f"metadata.session_timeout_ms={SESSION_MS}",
            f"recovery.open_ledger_grace_ms={GRACE_MS}",
            "recovery.retry_ms=1_000",
            *settings,
        )
        flags = [flag for setting in ours for flag in ("--set", setting)]
        command = [*MAGNETAR, "autorecovery", "--metadata", f"zk://{zookeeper}", "--name", OUR_NAME, *flags]
        super().__init__("autorecovery", command, directory / "autorecovery.log")

    def repaired(self) -> int:
        """How many ledgers this process has repaired."""
        with urlopen(f"http://{HOST}:{self.ready['http_port']}/metrics", timeout=_HTTP_TIMEOUT_S) as answer:
            lines = answer.read().decode().splitlines()
        return int(sum(float(line.split()[-1]) for line in lines if line.startswith(_REPAIRED)))


@asynccontextmanager
async def our_auditor(zookeeper: str) -> AsyncIterator[None]:
    """Our auditor, as a candidate, without a worker."""
    config = replace(Config(), metadata=MetadataConfig(url=f"zk://{zookeeper}", session_timeout_ms=SESSION_MS))
    runtime, paths = SystemRuntime(), BookKeeperPaths()
    async with await open_store(config, runtime) as store, LedgerClient(store, config, runtime) as client:
        roster = Roster(store, paths, timeout_s=config.metadata.operation_timeout_ms / 1000)
        await roster.start()
        rate = ByteRate(config.recovery.copy_bytes_per_s)
        tools = RepairTools(client.context, config.recovery, roster, rate, rate)
        auditor = Auditor(store, paths, tools, OUR_NAME)
        election = Election(store, RecoveryPaths(paths), OUR_NAME, runtime.entropy.random, auditor.run)
        task = asyncio.create_task(election.run())
        try:
            yield
        finally:
            await end_task(task)
            await roster.aclose()
