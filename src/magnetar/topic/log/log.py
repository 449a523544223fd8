"""TopicLog: a topic's messages, as a chain of ledgers with one writer.

    log = await TopicLog.open("tenant/namespace/persistent/name", context, config, listener)
        if log.has_room: log.append(headers_and_payload, messages=1, token=…)     # the listener gets the outcome
    entries = log.read_nowait(position, 100, 2**20) or await log.read(position, 100, 2**20)

log_writer.py appends, and reports what the bookies have confirmed. ledger_roller.py begins a new ledger when the open
one is full, old, or failed; managed_ledger.py names all of them, durably. The caller of `append` notices only a short
wait. A topic that receives no messages is rolled and trimmed when its owner asks (`roll_if_due`, `trim`).

Invariant: What `on_appended` reported is on Qa bookies, in this order, with indexes that have no gap; the next owner of
           the topic finds it. Once another owner has opened the log, nothing more is acknowledged here.
Failure:   When another owner is met, or no ledger can be made, the log ends: `on_fenced` is called, and everything is
           refused.
Read next: log_writer.py, ledger_roller.py; tail_cache.py, reads.py; index.py; docs/topics.md
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from magnetar.config.topic import TopicConfig
from magnetar.errors import TopicFencedError
from magnetar.topic.chain import LedgerChain, LedgerSpan
from magnetar.topic.log.index import LogIndex, first_position_where, time_of
from magnetar.topic.log.ledger_roller import LedgerRoller, delete_ledgers
from magnetar.topic.log.log_writer import LogListener, LogWriter
from magnetar.topic.log.managed_ledger import LogContext, OwnedNode
from magnetar.topic.log.reads import LogReads
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import Position


@dataclass(frozen=True, slots=True)
class Retention:
    """What is kept although all cursors have passed it; −1 is forever, 0 is not at all."""

    time_ms: int = 0
    size_bytes: int = 0


def ledgers_to_drop(
    spans: Sequence[LedgerSpan], consumed: Position, retention: Retention, now_ms: int
) -> list[LedgerSpan]:
    """Takes closed spans and, last, the one that is written. `consumed` is the slowest durable cursor's mark-delete.

    As in Pulsar, whole ledgers are dropped, from the oldest on; never the one that is written, nor one that a durable
    cursor still needs. A ledger that all cursors have passed is retained while it is younger than `time_ms` and what
    remains without it is smaller than `size_bytes`. If either is exceeded, it is dropped: with both 0, ledgers are
    dropped as soon as they are read.
    """
    remaining = sum(span.size_bytes for span in spans)
    dropped: list[LedgerSpan] = []
    for span in spans[:-1]:
        if not _is_consumed(span, consumed):
            break
        remaining -= span.size_bytes
        expired = retention.time_ms >= 0 and now_ms - span.closed_ms > retention.time_ms
        too_much = retention.size_bytes >= 0 and remaining >= retention.size_bytes
        if not (expired or too_much):
            break
        dropped.append(span)
    return dropped


def _is_consumed(span: LedgerSpan, consumed: Position) -> bool:
    return consumed >= (span.ledger_id, span.entries - 1)


class TopicLog:
    """Is made by `open`; ended by `aclose` or `delete`, also after `on_fenced`."""

    def __init__(self, node: OwnedNode, context: LogContext, config: TopicConfig, listener: LogListener) -> None:
        """Is called by `open` only."""
        self.name = node.name
        self.chain: LedgerChain = node.chain
        """It has grown when `on_appended` is called."""
        self._node = node
        self._context = context
        self._tail = context.tail_cache.tail()
        self._reads = LogReads(self.chain, context.client, config)
        self._index = LogIndex(node, self._read_one, self._reads.read)
        self._held: dict[str, Position] = {}
        self._writer = LogWriter(node, self._tail, listener, config, context.entropy)
        self._roller = LedgerRoller(node, self._writer, listener, context, config)
        self.is_new = node.is_new
        """Whether it was made by this `open`, and had no owner before."""
        self.append = self._writer.append
        self.append_parts = self._writer.append_parts
        self.roll = self._roller.roll
        self.roll_if_due = self._roller.roll_if_due
        self.terminate = self._roller.terminate
        self.check_owner = node.check_owner
        self.position_at_index = self._index.position_at
        self.index_of = self._index.index_of
        self.index_bounds = self._index.bounds_of

    @classmethod
    async def open(
        cls, name: str, context: LogContext, config: TopicConfig, listener: LogListener, *, create: bool = True
    ) -> TopicLog:
        """Opens the log. `name` is the managed ledger's: `tenant/namespace/persistent/encoded-name`.

        The previous owner is fenced when this returns. Raises TopicNotFoundError without `create`, and TopicFencedError
        if another broker opens it at the same moment.
        """
        node = await OwnedNode.open(name, context, create=create)
        self = cls(node, context, config, listener)
        node.next_index = self._writer.next_index = await self._index.recover()
        await self._roller.begin()
        return self

    @property
    def has_room(self) -> bool:
        """Whether `append` should be called now. If not, `on_room` will be called."""
        return self._writer.has_room

    @property
    def last_confirmed(self) -> Position:
        return self.chain.last_confirmed

    @property
    def next_index(self) -> int:
        """The index of the next message that is appended."""
        return self._writer.next_index

    @property
    def next_confirmed_index(self) -> int:
        """The index after the last confirmed message, which `index_of` returns for the end."""
        return self._node.next_index

    @property
    def is_terminated(self) -> bool:
        return self._node.terminated is not None

    @property
    def is_fenced(self) -> bool:
        return self._roller.error is not None

    @property
    def properties(self) -> dict[str, str]:
        """The topic's properties, as its node has them."""
        return dict(self._node.properties)

    @property
    def appends_waiting(self) -> int:
        """Entries that wait for a ledger."""
        return self._writer.waiting

    async def set_property(self, key: str, value: str | None) -> None:
        """Sets a property of the topic; None removes it."""
        self._roller.check_open()
        await self._node.change(self._set_property(key, value))

    async def _set_property(self, key: str, value: str | None) -> None:
        properties = {name: text for name, text in self._node.properties.items() if name != key}
        if value is not None:
            properties[key] = value
        await self._write(self.chain.spans, properties)

    async def _write(self, spans: Sequence[LedgerSpan], properties: dict[str, str] | None = None) -> None:
        try:
            await self._node.write(spans, properties=properties)
        except TopicFencedError as error:
            self._roller.fail(error)
            raise

    def read_nowait(self, first: Position, entries_max: int, bytes_max: int) -> list[LogEntry] | None:
        """Reads from the tail cache; returns None if the entry is not in it, and [] after the last entry."""
        found = self._tail.read(first, entries_max, bytes_max)
        if found is not None:
            return found
        chain = self.chain
        if chain.contains(first):
            return None
        first = chain.next_position(first)
        return self._tail.read(first, entries_max, bytes_max) if chain.contains(first) else []

    async def read(self, first: Position, entries_max: int, bytes_max: int) -> list[LogEntry]:
        """Returns the entries from the first one at or after `first`: at least one; [] if none exists.

        They are confirmed, and as many as one answer of a bookie brings, within the limits.
        """
        found = self.read_nowait(first, entries_max, bytes_max)
        return found if found is not None else await self._reads.read(first, entries_max, bytes_max)

    async def _read_one(self, position: Position) -> LogEntry:
        found = self._tail.read(position, 1, 1)
        return found[0] if found else await self._reads.read_one(position)

    def watch_tail(self, callback: Callable[[], None]) -> None:
        """Calls `callback` once per confirmed run, after `on_appended`."""
        self._writer.watchers = (*self._writer.watchers, callback)

    def unwatch_tail(self, callback: Callable[[], None]) -> None:
        self._writer.watchers = tuple(watcher for watcher in self._writer.watchers if watcher != callback)

    async def position_at_time(self, publish_ms: int) -> Position:
        """Returns the first entry that was published at this time or later, or `chain.end`."""
        return await first_position_where(self.chain, self._read_one, lambda entry: time_of(entry) >= publish_ms)

    def hold(self, key: str, after: Position | None) -> None:
        """Keeps everything after this position from being trimmed, until it is called with None."""
        if after is None:
            self._held.pop(key, None)
        else:
            self._held[key] = after

    async def trim(self, consumed: Position, *, retention_ms: int = 0, retention_bytes: int = 0) -> list[LedgerSpan]:
        """Drops ledgers that all cursors have passed and that are not retained (`ledgers_to_drop`); returns them.

        `consumed` is the mark-delete of the slowest durable cursor, LATEST without one.
        """
        self._roller.check_open()
        return await self._node.change(self._trim(consumed, Retention(retention_ms, retention_bytes)))

    async def _trim(self, consumed: Position, retention: Retention) -> list[LedgerSpan]:
        consumed = min(consumed, *self._held.values()) if self._held else consumed
        return await self._drop(ledgers_to_drop(self.chain.spans, consumed, retention, self._context.entropy.wall_ms()))

    async def _drop(self, spans: list[LedgerSpan]) -> list[LedgerSpan]:
        if spans:
            gone = [span.ledger_id for span in spans]
            await self._write([span for span in self.chain.spans if span.ledger_id not in gone])
            self.chain.drop(gone)
            self._reads.forget(gone)
            await delete_ledgers(self._context.client, spans)
        return spans

    async def aclose(self) -> None:
        """Ends the log: what is in flight is still acknowledged, what waits for a ledger fails, and the ledger is
        closed."""
        await self._roller.aclose()
        await self._forget()

    async def give_up(self) -> None:
        """Ends at once: what is in progress is cancelled, and the next owner recovers the ledger. May be called
        again."""
        await self._roller.release(wait_s=0.0)
        await self._forget()

    async def delete(self) -> None:
        """Deletes the topic's node first, then its ledgers. Raises NotEmptyError while it has cursors."""
        self._roller.check_open()
        await self._node.change(self._delete_node())
        await self._roller.release()
        await self._forget()
        await delete_ledgers(self._context.client, self.chain.spans)

    async def _delete_node(self) -> None:
        try:
            await self._node.delete()
        except TopicFencedError as error:
            self._roller.fail(error)
            raise

    async def _forget(self) -> None:
        self._writer.watchers = ()
        self._tail.clear()
        await self._reads.aclose()
