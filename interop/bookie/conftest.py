"""What the checks of this part share: three bookies of one make, and Apache's client in a Java process.

The same checks run twice: on Apache's bookies they show that they ask for what BookKeeper does, on ours that we do it.
Some are about more than that, and run on ours alone (`only_on`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from interop.apache import quick_sorted_apache_bookie, shell
from interop.bookie.client import ApacheClient, Protocol
from interop.bookies import BookieCluster, MakeBookie
from interop.java_program import JavaProgram
from interop.magnetar_bookies import magnetar_bookie

MAKES: dict[str, MakeBookie] = {"apache": quick_sorted_apache_bookie, "magnetar": magnetar_bookie}
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


@pytest.fixture(params=["v2", "v3"])
def protocol(request: pytest.FixtureRequest) -> Protocol:
    """A check that asks for it runs with both."""
    found: Protocol = request.param
    return found


@pytest.fixture(scope="package", params=list(MAKES))
def bookies(request: pytest.FixtureRequest) -> Iterator[Bookies]:
    with tempfile.TemporaryDirectory(prefix="magnetar-interop-") as temporary:
        directory = Path(temporary)
        with (
            BookieCluster(directory / "cluster", MAKES[request.param], BOOKIES) as cluster,
            JavaProgram("LedgerClient", directory, answer_timeout_s=_ANSWER_TIMEOUT_S) as program,
        ):
            yield Bookies(cluster, program, directory)
