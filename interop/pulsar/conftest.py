"""What the checks of this part share: one standalone server, Apache's Java client in a process, and pulsar-admin.

The same checks run twice: on Apache Pulsar they show that they ask for what Pulsar does, on ours that we do it.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from interop.jars import PULSAR, PULSAR_ADMIN
from interop.java_program import QUICK_JVM, JavaProgram
from interop.pulsar.apache import ApacheStandalone
from interop.pulsar.servers import MagnetarStandalone, Standalone
from magnetar.errors import ProcessFailedError

_ANSWER_TIMEOUT_S = 100  # Just below a check's.
_CLIENT_JVM = ("-Xmx512m", QUICK_JVM)


def quick_apache_standalone(directory: Path) -> Standalone:
    return ApacheStandalone(directory, jvm=(QUICK_JVM,))


MAKES: dict[str, Callable[[Path], Standalone]] = {"apache": quick_apache_standalone, "magnetar": MagnetarStandalone}


@dataclass(slots=True)
class Server:
    standalone: Standalone
    program: JavaProgram
    admin_program: JavaProgram
    directory: Path
    _topics: int = 0

    def new_topic(self) -> str:
        self._topics += 1
        return f"persistent://public/default/interop-{self._topics}"

    async def ask(self, op: str, **arguments: Any) -> Any:
        return await self.program.ask(op, **arguments)

    async def texts(self, consumer: str, count: int, **arguments: Any) -> list[str]:
        return [message["text"] for message in await self.ask("receive", consumer=consumer, count=count, **arguments)]

    async def admin(self, *words: str) -> str:
        """What `pulsar-admin WORDS` prints; ProcessFailedError with what it says when it fails."""
        answer = await self.admin_program.ask("admin", url=self.standalone.admin_url, words=words)
        if not answer["succeeded"]:
            raise ProcessFailedError(f"pulsar-admin {' '.join(words)} failed: {answer['printed']}")
        return str(answer["printed"])

    async def admin_json(self, *words: str) -> Any:
        return json.loads(await self.admin(*words))


@asynccontextmanager
async def open_server(make: Callable[[Path], Standalone]) -> AsyncIterator[Server]:
    with tempfile.TemporaryDirectory(prefix="magnetar-interop-") as temporary:
        directory = Path(temporary)
        with (
            closing(make(directory / "server")) as standalone,
            JavaProgram(
                "PulsarPrograms", directory, jvm=_CLIENT_JVM, answer_timeout_s=_ANSWER_TIMEOUT_S, jars=PULSAR
            ) as program,
            JavaProgram("AdminProgram", directory, answer_timeout_s=_ANSWER_TIMEOUT_S, jars=PULSAR_ADMIN) as admin,
        ):
            standalone.wait_ready()
            await program.ask("connect", url=standalone.url)
            yield Server(standalone, program, admin, directory)


@pytest.fixture(scope="package", params=list(MAKES))
async def server(request: pytest.FixtureRequest) -> AsyncIterator[Server]:
    async with open_server(MAKES[request.param]) as opened:
        yield opened
