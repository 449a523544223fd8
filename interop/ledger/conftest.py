"""What the checks of this part share: four bookies, our client, and Apache's client in a Java process.

The same checks run twice: on four Apache bookies, and on two of Apache's and two of ours, where one more kills one of
ours.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from interop.apache import quick_apache_bookie, shell
from interop.bookie.client import E3_QW2_QA2, E3_QW3_QA2, ApacheClient, Protocol, Quorum, wait_until
from interop.bookies import READY_TIMEOUT_S, Bookie, BookieCluster, MakeBookie
from interop.java_program import JavaProgram
from interop.ledger.doomed import Doomed, apache_command, our_command
from interop.ledger.ours import our_client
from interop.magnetar_bookies import magnetar_bookie
from magnetar.ledger.client import LedgerClient

BOOKIES = 4  # One more than the ensemble, so that one can be replaced.
_ANSWER_TIMEOUT_S = 110  # Just below a check's.


def mixed_bookie(directory: Path, zookeeper: str) -> Bookie:
    """Of Apache's make and of ours in turn, by the number at the end of the directory's name."""
    number = int(directory.name.rpartition("-")[2])
    return (magnetar_bookie if number % 2 else quick_apache_bookie)(directory, zookeeper)


CLUSTERS: dict[str, MakeBookie] = {
    "apache": quick_apache_bookie,
    "mixed": mixed_bookie,
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


@pytest.fixture(params=[E3_QW3_QA2, E3_QW2_QA2], ids=str)
def quorum(request: pytest.FixtureRequest) -> Quorum:
    """A check that asks for it runs with both."""
    found: Quorum = request.param
    return found


@pytest.fixture(scope="package", params=list(CLUSTERS))
def ledgers(request: pytest.FixtureRequest) -> Iterator[Ledgers]:
    with tempfile.TemporaryDirectory(prefix="magnetar-interop-") as temporary:
        directory = Path(temporary)
        logging.getLogger("magnetar").addHandler(logging.NullHandler())  # Bookies and writers are meant to fail here.
        with (
            BookieCluster(directory / "cluster", CLUSTERS[request.param], BOOKIES) as cluster,
            JavaProgram("LedgerClient", directory, answer_timeout_s=_ANSWER_TIMEOUT_S) as program,
        ):
            yield Ledgers(cluster, program, directory)
