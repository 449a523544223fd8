"""What a check is given: four bookies, our client, and Apache's client in a Java process.

PARTS has the same checks twice: on four Apache bookies, and on two of Apache's and two of ours, where one more kills
one of ours.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from interop.apache import apache_bookie, shell
from interop.bookie.client import E3_QW2_QA2, E3_QW3_QA2, ApacheClient, Protocol, Quorum, wait_until
from interop.bookies import READY_TIMEOUT_S, Bookie, BookieCluster, MakeBookie
from interop.java_program import JavaProgram
from interop.ledger.doomed import Doomed, apache_command, our_command
from interop.ledger.ours import our_client
from interop.magnetar_bookies import magnetar_bookie
from interop.runner import Part
from magnetar.ledger.client import LedgerClient

BOOKIES = 4  # One more than the ensemble, so that one can be replaced.
_ANSWER_TIMEOUT_S = 110  # Just below a check's.


def mixed_bookie(directory: Path, zookeeper: str) -> Bookie:
    """Of Apache's make and of ours in turn, by the number at the end of the directory's name."""
    number = int(directory.name.rpartition("-")[2])
    return (magnetar_bookie if number % 2 else apache_bookie)(directory, zookeeper)


CLUSTERS: dict[str, MakeBookie] = {
    "four Apache bookies": apache_bookie,
    "two Apache and two magnetar bookies": mixed_bookie,
}


@dataclass(slots=True)
class Ledgers:
    cluster: BookieCluster
    program: JavaProgram
    directory: Path
    _names: int = 0
    _theirs: dict[tuple[Protocol, int], ApacheClient] = field(default_factory=dict)

    def _next_name(self, kind: str) -> str:
        self._names += 1
        return f"{kind}-{self._names}"

    def ours(self, **settings: Any) -> AbstractAsyncContextManager[LedgerClient]:
        """A new one of our clients, with connections of its own."""
        return our_client(self.cluster.zookeeper, **settings)

    async def theirs(self, protocol: Protocol = "v2", *, explicit_lac_ms: int = 0) -> ApacheClient:
        """Apache's. One serves all checks: to end one takes it two seconds."""
        key = (protocol, explicit_lac_ms)
        if key not in self._theirs:
            client = ApacheClient(self.program, self._next_name("client"), protocol)
            await client.connect(self.cluster.zookeeper, explicit_lac_ms=explicit_lac_ms)
            self._theirs[key] = client
        return self._theirs[key]

    def our_doomed(self, *quorums: Quorum) -> Doomed:
        """A process of ours that writes until it is killed."""
        return Doomed(our_command(self.cluster.zookeeper, quorums), self.directory / self._next_name("ours"))

    def apaches_doomed(self, *quorums: Quorum) -> Doomed:
        directory = self.directory / self._next_name("apaches")
        return Doomed(apache_command(self.cluster.zookeeper, quorums, directory), directory)

    async def shell(self, *words: str) -> str:
        return await asyncio.to_thread(shell, self.directory / "shell", self.cluster.zookeeper, *words)

    @asynccontextmanager
    async def without(self, bookie: Bookie) -> AsyncIterator[None]:
        """kill -9, and afterwards it is started again and waited for."""
        registry = self.cluster.registry
        assert registry is not None
        bookie_id = bookie.id
        bookie.kill()
        try:
            yield
        finally:

            async def is_gone() -> bool:
                return bookie_id not in registry.available()

            # One that comes back while its old session lives would look ready at once.
            await wait_until(is_gone, f"{bookie_id} is no longer registered")
            bookie.launch()

            async def is_ready() -> bool:
                return bookie.is_ready(registry)

            await wait_until(is_ready, f"{bookie_id} is registered again", timeout=READY_TIMEOUT_S)


Check = Callable[[Ledgers], Awaitable[None]]


def on_both_quorums(check: Callable[[Ledgers, Quorum], Awaitable[None]]) -> list[Check]:
    """Two checks, named after it."""

    def of(quorum: Quorum) -> Check:
        async def run(b: Ledgers) -> None:
            await check(b, quorum)

        run.__name__ = f"{check.__name__}_({quorum})"
        return run

    return [of(E3_QW3_QA2), of(E3_QW2_QA2)]


@asynccontextmanager
async def open_ledgers(make: MakeBookie) -> AsyncIterator[Ledgers]:
    with tempfile.TemporaryDirectory(prefix="magnetar-interop-") as temporary:
        directory = Path(temporary)
        logging.getLogger("magnetar").addHandler(logging.NullHandler())  # Bookies and writers are meant to fail here.
        with (
            BookieCluster(directory / "cluster", make, BOOKIES) as cluster,
            JavaProgram("LedgerClient", directory, answer_timeout_s=_ANSWER_TIMEOUT_S) as program,
        ):
            yield Ledgers(cluster, program, directory)


def part_on(cluster: str) -> Part:
    from interop.ledger import (
        access_checks,
        content_checks,
        loss_checks,
        recovery_checks,
        tail_checks,
    )  # They import this module's types.

    checks = [
        *content_checks.CHECKS, *access_checks.CHECKS, *tail_checks.CHECKS, *recovery_checks.CHECKS,
        *loss_checks.CHECKS, *(loss_checks.MIXED_CHECKS if CLUSTERS[cluster] is mixed_bookie else []),
    ]  # fmt: skip
    opened: Callable[[], AbstractAsyncContextManager[Ledgers]] = functools.partial(open_ledgers, CLUSTERS[cluster])
    return Part(f"ledger, on {cluster}", opened, checks)


PARTS = [part_on(cluster) for cluster in CLUSTERS]
