"""Asking a broker to publish, over the simulated network: one line there, one line back.

Line:      `publish <topic> <epoch> <owner>`, `forget <topic> <owner>` or `skip <owner> <epoch>`
Answer:    `ok`, `again <why>` (worth asking again), `refused <why>`, or `elsewhere <broker>`
Same:      the broker does what admin/topics/staging.py has it do: it looks the topic up, and calls the same function.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Final
from urllib.parse import urlsplit

from magnetar.broker.broker import Broker
from magnetar.broker.front_end import PULSAR
from magnetar.errors import BrokerUnavailableError, EpochOrderError, MagnetarError, ServiceNotReadyError
from magnetar.names import TopicName

PORT: Final = 6651
_WAIT_S: Final = 0.5
_ANSWER_S: Final = 2.0
_HOPS_MAX: Final = 4


@asynccontextmanager
async def answering(broker: Broker) -> AsyncIterator[None]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            line = (await reader.readuntil()).decode().split()
            writer.write((await _answer(broker, line) + "\n").encode())
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "0.0.0.0", PORT)  # noqa: S104
    try:
        yield
    finally:
        server.close()


async def _answer(broker: Broker, line: Sequence[str]) -> str:
    try:
        if line[0] == "skip":
            broker.staged.note_skip(line[1], int(line[2]))
            return "ok"
        name = TopicName.parse(line[1])
        found = await broker.service.look_up(name)
        if not found.is_here:
            return f"elsewhere {urlsplit(found.address.url_for(PULSAR)).hostname}"
        if line[0] == "publish":
            await broker.staged.publish(name, line[3], int(line[2]), wait_s=_WAIT_S)
        else:
            await broker.staged.forget(name, line[2])
    except MagnetarError as error:
        kind = "again" if error.retryable or error.outcome_unknown else "refused"
        return f"{kind} {type(error).__name__}: {error}".replace("\n", " ")
    return "ok"


class AskingPublisher:
    """A `Publisher` of the simulated world."""

    def __init__(self, brokers: Sequence[str], random: Random) -> None:
        self._brokers = brokers
        self._random = random

    async def publish(self, topic: str, owner: str, epoch: int) -> None:
        await self._ask(f"publish {topic} {epoch} {owner}\n")

    async def forget(self, topic: str, owner: str) -> None:
        await self._ask(f"forget {topic} {owner}\n")

    async def note_skip(self, owner: str, epoch: int) -> None:
        await self._ask(f"skip {owner} {epoch}\n")

    async def _ask(self, line: str) -> None:
        broker = self._random.choice(self._brokers)
        for _ in range(_HOPS_MAX):
            kind, _, rest = (await self._exchange(broker, line)).partition(" ")
            if kind == "ok":
                return
            if kind == "refused":
                raise EpochOrderError(rest)
            if kind == "again":
                raise ServiceNotReadyError(rest)
            broker = rest
        raise ServiceNotReadyError("sent from one broker to the next")

    async def _exchange(self, broker: str, line: str) -> str:
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(_ANSWER_S):
                reader, writer = await asyncio.open_connection(broker, PORT)
                writer.write(line.encode())
                answer = await reader.readline()
        except (OSError, TimeoutError) as error:
            raise BrokerUnavailableError(f"{broker} does not answer: {error!r}") from None
        finally:
            if writer is not None:
                writer.close()
        if not answer.endswith(b"\n"):
            raise BrokerUnavailableError(f"{broker} has hung up")
        return answer.decode().strip()
