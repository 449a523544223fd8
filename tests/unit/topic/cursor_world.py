"""Cursors on an in-memory metadata store and in-memory ledgers, of which any step may fail or be the last one.

Order:     every operation on a ledger or on the store is a step. Steps are counted; `fate` says what becomes of each.
Failure:   a killed step never returns, and neither does any later one, as if the process had ended.
"""

from __future__ import annotations

import asyncio
import enum
import itertools
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar, cast

from magnetar.config.metadata import MetadataConfig
from magnetar.config.topic import CursorConfig
from magnetar.errors import (
    LedgerClosedError,
    LedgerFencedError,
    MagnetarError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    OutcomeUnknownError,
    WriterFailedError,
)
from magnetar.metadata.memory import MemoryServer
from magnetar.metadata.store import MetadataStore
from magnetar.quorum.sizes import QuorumSizes
from magnetar.runtime.system import SystemRuntime
from magnetar.topic.chain import LedgerChain
from magnetar.topic.cursor.acks import AckState
from magnetar.topic.cursor.codec import decode_node
from magnetar.topic.cursor.cursors import Cursors
from magnetar.topic.cursor.ledger_storage import CursorContext
from magnetar.topic.log.managed_ledger import managed_ledger_path
from magnetar.topic.position import Position
from magnetar.topic.proto.managed_ledger_pb2 import ManagedCursorInfo

T = TypeVar("T")

TOPIC = "public/default/persistent/orders"
QUICK = CursorConfig(mark_delete_interval_ms=10, store_timeout_ms=60_000)


class Fate(enum.Enum):
    KILLED_BEFORE = "killed before"
    KILLED_AFTER = "killed after"
    REFUSED = "refused"
    REQUEST_LOST = "request lost"
    ANSWER_LOST = "answer lost"


class Steps:
    def __init__(self) -> None:
        self.names: list[str] = []
        self.fate: Callable[[int, str], Fate | None] = lambda _number, _name: None
        self.killed = asyncio.Event()

    async def take(self, name: str, do: Callable[[], Coroutine[Any, Any, T]], *, refusal: MagnetarError) -> T:
        await asyncio.sleep(0)
        if self.killed.is_set():
            await self._hang()
        number = len(self.names)
        self.names.append(name)
        fate = self.fate(number, name)
        if fate is Fate.KILLED_BEFORE:
            await self._hang()
        if fate is Fate.REFUSED:
            raise refusal
        if fate is Fate.REQUEST_LOST:
            raise _unknown(name)
        result = await do()
        if fate is Fate.KILLED_AFTER:
            await self._hang()
        if fate is Fate.ANSWER_LOST:
            raise _unknown(name)
        return result

    async def _hang(self) -> None:
        self.killed.set()
        await asyncio.get_running_loop().create_future()


def _unknown(name: str) -> MagnetarError:
    if name.startswith("store"):
        return OutcomeUnknownError(name)
    error = WriterFailedError(name)
    error.outcome_unknown = True
    return error


class _Ledger:
    def __init__(self) -> None:
        self.entries: list[bytes] = []
        self.is_over = False
        self.custom: dict[str, bytes] = {}


class Ledgers:
    """All there are; shared by all owners."""

    def __init__(self) -> None:
        self.all: dict[int, _Ledger] = {}
        self.ids = itertools.count(100)
        self.writers: list[Writer] = []


class Client:
    """As much of a `LedgerClient` as cursors use."""

    def __init__(self, ledgers: Ledgers, steps: Steps) -> None:
        self.ledgers = ledgers
        self.steps = steps

    async def create(self, *, custom_metadata: dict[str, bytes], **_sizes: Any) -> Writer:
        async def do() -> Writer:
            ledger_id = next(self.ledgers.ids)
            self.ledgers.all[ledger_id] = _Ledger()
            self.ledgers.all[ledger_id].custom = custom_metadata
            return Writer(ledger_id, self)

        nobody = NotEnoughBookiesError(needed=1, known=0, writable=0, quarantined=0)
        return await self.steps.take("ledger create", do, refusal=nobody)

    async def open(self, ledger_id: int) -> Reader:
        async def do() -> Reader:
            self.found(ledger_id).is_over = True
            return Reader(ledger_id, self)

        return await self.steps.take("ledger open", do, refusal=_unknown("ledger open"))

    async def delete(self, ledger_id: int) -> None:
        async def do() -> None:
            self.found(ledger_id)
            del self.ledgers.all[ledger_id]

        await self.steps.take("ledger delete", do, refusal=MetadataUnavailableError("away"))

    def found(self, ledger_id: int) -> _Ledger:
        if ledger_id not in self.ledgers.all:
            raise NoSuchLedgerError(f"no ledger {ledger_id}")
        return self.ledgers.all[ledger_id]


class Writer:
    def __init__(self, ledger_id: int, client: Client) -> None:
        self.ledger_id = ledger_id
        self.last_confirmed = -1
        self.is_over = False
        self._client = client
        client.ledgers.writers.append(self)

    async def add(self, payload: bytes) -> int:
        async def do() -> int:
            ledger = self._client.found(self.ledger_id)
            if ledger.is_over:
                raise LedgerFencedError("taken over")
            ledger.entries.append(payload)
            return len(ledger.entries) - 1

        if self.is_over:
            raise LedgerClosedError("released")
        try:
            self.last_confirmed = await self._client.steps.take("ledger add", do, refusal=WriterFailedError("away"))
        except WriterFailedError:
            self.is_over = True
            raise
        return self.last_confirmed

    async def close(self) -> None:
        async def do() -> None:
            self._client.found(self.ledger_id).is_over = True

        await self._client.steps.take("ledger close", do, refusal=MetadataUnavailableError("away"))

    async def release(self) -> None:
        self.is_over = True


class Reader:
    def __init__(self, ledger_id: int, client: Client) -> None:
        self._entries = client.ledgers.all[ledger_id].entries
        self._steps = client.steps
        self.last_confirmed = len(self._entries) - 1

    async def read(self, first: int, last: int) -> list[Any]:
        async def do() -> list[Any]:
            return [_Entry(payload) for payload in self._entries[first : last + 1]]

        return await self._steps.take("ledger read", do, refusal=_unknown("ledger read"))


class _Entry:
    def __init__(self, payload: bytes) -> None:
        self.payload = payload


class Store:
    """A metadata store whose steps are counted."""

    def __init__(self, inner: MetadataStore, steps: Steps) -> None:
        self._inner = inner
        self._steps = steps

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            away = MetadataUnavailableError("away")
            return await self._steps.take(f"store {name}", lambda: method(*args, **kwargs), refusal=away)

        return call


class CursorWorld:
    """One topic; its log has ledgers 1, 2, 3 with these numbers of entries."""

    def __init__(self, *entries: int, config: CursorConfig = QUICK) -> None:
        self.chain = LedgerChain()
        for ledger_id, count in enumerate(entries, 1):
            self.chain.begin(ledger_id)
            self.chain.grow(count, 10 * count)
        self.config = config
        self.runtime = SystemRuntime()
        self.server = MemoryServer(self.runtime.entropy, MetadataConfig())
        self.inner = self.server.connect()
        self.ledgers = Ledgers()
        self.fenced: list[MagnetarError] = []

    async def start(self) -> None:
        await self.inner.create(managed_ledger_path(TOPIC), make_parents=True)

    def owner(self, steps: Steps | None = None) -> CursorContext:
        steps = steps or Steps()
        return CursorContext(
            client=cast("Any", Client(self.ledgers, steps)),
            store=cast("Any", Store(self.inner, steps)),
            entropy=self.runtime.entropy,
            sizes=QuorumSizes(1, 1, 1),
            config=self.config,
        )

    async def open(self, steps: Steps | None = None) -> Cursors:
        context = self.owner(steps)
        return await Cursors.open(TOPIC, self.chain, context, on_fenced=self.fenced.append)

    async def node(self, encoded_name: str = "sub") -> ManagedCursorInfo:
        found = await self.inner.get(f"{managed_ledger_path(TOPIC)}/{encoded_name}")
        assert found is not None
        return decode_node(found.value)


def acked_positions(chain: LedgerChain, acks: AckState | Any) -> frozenset[Position]:
    existing = (Position(span.ledger_id, entry) for span in chain.spans for entry in range(span.entries))
    return frozenset(position for position in existing if acks.is_acknowledged(position))


def run_of(ledger_id: int, entry_ids: Iterable[int]) -> list[Position]:
    return [Position(ledger_id, entry_id) for entry_id in entry_ids]
