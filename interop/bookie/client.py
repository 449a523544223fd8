"""Apache's Java client seen from Python: one connection of its own, a handle per ledger it created or opened."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from interop.bookies import ROOT
from interop.java_program import ApacheError, JavaProgram

Protocol = Literal["v2", "v3"]
PASSWORD = "open sesame"
ENTRY_BYTES = 100
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Quorum:
    ensemble: int
    write: int
    ack: int

    def __str__(self) -> str:
        return f"E{self.ensemble}/Qw{self.write}/Qa{self.ack}"


E3_QW3_QA2 = Quorum(3, 3, 2)
E3_QW2_QA2 = Quorum(3, 2, 2)


@dataclass(frozen=True, slots=True)
class ApacheClient:
    program: JavaProgram
    name: str
    protocol: Protocol

    async def connect(self, zookeeper: str, *, explicit_lac_ms: int = 0) -> None:
        await self._ask(
            "connect", zookeeper=zookeeper, root=ROOT, protocol=self.protocol, explicitLacMs=explicit_lac_ms
        )

    async def disconnect(self) -> None:
        """Ledgers stay as they are."""
        await self._ask("disconnect")

    async def create(
        self,
        quorum: Quorum = E3_QW3_QA2,
        *,
        password: str = PASSWORD,
        digest: str = "CRC32C",
        deferred_sync: bool = False,
    ) -> Ledger:
        ledger_id = await self._ask(
            "create", ensemble=quorum.ensemble, writeQuorum=quorum.write, ackQuorum=quorum.ack, password=password,
            digest=digest, deferredSync=deferred_sync,
        )  # fmt: skip
        return Ledger(self, ledger_id)

    async def open(
        self, ledger_id: int, *, recovery: bool = True, password: str = PASSWORD, digest: str = "CRC32C"
    ) -> Ledger:
        """With recovery it fences the writer and closes the ledger."""
        ledger = Ledger(self, ledger_id)
        await ledger.ask("open", recovery=recovery, password=password, digest=digest)
        return ledger

    async def bookie_info(self) -> dict[str, dict[str, int]]:
        info: dict[str, dict[str, int]] = await self._ask("bookieInfo")
        return info

    async def _ask(self, op: str, **arguments: Any) -> Any:
        return await self.program.ask(op, client=self.name, **arguments)


@dataclass(frozen=True, slots=True)
class Ledger:
    """A handle: what one client knows of one ledger."""

    client: ApacheClient
    id: int

    async def ask(self, op: str, **arguments: Any) -> Any:
        return await self.client.program.ask(op, client=self.client.name, ledgerId=self.id, **arguments)

    async def state(self) -> dict[str, Any]:
        state: dict[str, Any] = await self.ask("state")
        return state

    async def write(self, count: int, *, in_flight: int = 1, size: int = ENTRY_BYTES) -> None:
        """Every add must be acknowledged."""
        done = await self.ask("write", count=count, inFlight=in_flight, size=size)
        if done != {"acknowledged": count, "error": ""}:
            raise AssertionError(f"of {count} adds {done['acknowledged']} were acknowledged, then: {done['error']}")

    async def refused_write(self) -> str:
        """The name of the exception that one add meets; empty if it is acknowledged."""
        done = await self.ask("write", count=1, inFlight=1, size=ENTRY_BYTES)
        return str(done["error"])

    async def begin_writing(self, *, in_flight: int) -> None:
        await self.ask("beginWriting", inFlight=in_flight, size=ENTRY_BYTES)

    async def acknowledged(self) -> int:
        return int(await self.ask("acknowledged"))

    async def wait_acknowledged(self, count: int) -> None:
        async def enough() -> bool:
            return await self.acknowledged() >= count

        await wait_until(enough, f"{count} adds acknowledged")

    async def end_writing(self) -> tuple[int, str]:
        """Waits for the first add that fails: how many were acknowledged, and the name of the exception."""
        done = await self.ask("endWriting", untilItFails=True)
        return done["acknowledged"], done["error"]

    async def verify(self, last: int, *, first: int = 0, size: int = ENTRY_BYTES) -> None:
        """Each entry is there with the bytes that were written."""
        count = await self.ask("verify", first=first, last=last, size=size)
        assert count == last - first + 1

    async def lac(self) -> int:
        return int(await self.ask("readLac"))

    async def explicit_lac(self) -> int:
        return int(await self.ask("readExplicitLac"))

    async def close(self) -> None:
        await self.ask("close")


async def wait_until(condition: Callable[[], Awaitable[bool]], what: str, timeout: float = 30.0) -> None:
    try:
        async with asyncio.timeout(timeout):
            while not await condition():  # noqa: ASYNC110 - The condition is in another process.
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise AssertionError(f"{what}: not within {timeout:g} s") from None


def expect(what: str, got: object, wanted: object) -> None:
    if got != wanted:
        raise AssertionError(f"{what}: got {got!r}, wanted {wanted!r}")


async def error_of(doing: Awaitable[object]) -> str:
    """The name of the exception that Apache's client threw."""
    try:
        await doing
    except ApacheError as error:
        return str(error).partition(":")[0]
    return "nothing"
