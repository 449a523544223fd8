"""What a check is given: three bookies of one make, and Apache's client in a Java process.

PARTS has the same checks twice: on Apache's bookies they show that they ask for what BookKeeper does, on ours that we
do it. Some are about more than that, and run on ours alone.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from interop.apache import shell, sorted_apache_bookie
from interop.bookie.client import ApacheClient, Protocol
from interop.bookies import BookieCluster, MakeBookie
from interop.java_program import JavaProgram
from interop.magnetar_bookies import magnetar_bookie
from interop.runner import Part

MAKES: dict[str, MakeBookie] = {"apache": sorted_apache_bookie, "magnetar": magnetar_bookie}
BOOKIES = 3
_ANSWER_TIMEOUT_S = 110  # Just below a check's: a hundred thousand entries on a busy machine take their time.


@dataclass(slots=True)
class Bookies:
    cluster: BookieCluster
    program: JavaProgram
    directory: Path
    _clients: int = 0

    async def client(self, protocol: Protocol, *, explicit_lac_ms: int = 0) -> ApacheClient:
        """A new one, with connections of its own."""
        self._clients += 1
        client = ApacheClient(self.program, f"client-{self._clients}", protocol)
        await client.connect(self.cluster.zookeeper, explicit_lac_ms=explicit_lac_ms)
        return client

    def shell(self, *words: str, bookie_id: str | None = None) -> str:
        return shell(self.directory / "shell", self.cluster.zookeeper, *words, bookie_id=bookie_id)


Check = Callable[[Bookies], Awaitable[None]]


def with_both_protocols(check: Callable[[Bookies, Protocol], Awaitable[None]]) -> list[Check]:
    """Two checks, named after it."""

    def of(protocol: Protocol) -> Check:
        async def run(b: Bookies) -> None:
            await check(b, protocol)

        run.__name__ = f"{check.__name__}_in_{protocol}"
        return run

    return [of("v2"), of("v3")]


@asynccontextmanager
async def open_bookies(make: MakeBookie) -> AsyncIterator[Bookies]:
    with tempfile.TemporaryDirectory(prefix="magnetar-interop-") as temporary:
        directory = Path(temporary)
        with (
            BookieCluster(directory / "cluster", make, BOOKIES) as cluster,
            JavaProgram("LedgerClient", directory, answer_timeout_s=_ANSWER_TIMEOUT_S) as program,
        ):
            yield Bookies(cluster, program, directory)


def part_on(make: str) -> Part:
    from interop.bookie import (
        access_checks,
        ledger_checks,
        shell_checks,
        tail_checks,
    )  # They import this module's types.

    checks = [*ledger_checks.CHECKS, *access_checks.CHECKS, *tail_checks.CHECKS, *shell_checks.CHECKS]
    if make == "magnetar":
        checks += ledger_checks.OURS_ALONE
    opened: Callable[[], AbstractAsyncContextManager[Bookies]] = functools.partial(open_bookies, MAKES[make])
    return Part(f"bookie, on three {make} bookies", opened, checks)


PARTS = [part_on(make) for make in MAKES]
