"""TopicLog: a topic's messages, as a chain of ledgers with one writer.

    log = await TopicLog.open("tenant/namespace/persistent/name", parts, config, listener)
    if log.has_room: log.append(headers_and_payload, messages=1, token=…)     # the listener hears of it
    entries = log.read_nowait(position, 100, 2**20) or await log.read(position, 100, 2**20)

Promise:   what `on_appended` said is on Qa bookies, in this order, with indexes that have no gap; the next owner of the
           topic finds it. Once another owner has opened the log, nothing more is acknowledged here.
Ledgers:   a new one is begun when the old one is full, old, or failed (ledger_keeper.py); the topic's node names them
           all (node.py). Whoever appends does not notice, but for a moment of waiting.
Fenced:    the log is over once another owner is met, or no ledger can be had: `on_fenced`, and everything refused.
Time:      a topic that is not written to is rolled and trimmed when its owner says (`roll_if_due`, `trim`).
Read next: opening.py, appender.py; tail_cache.py, log_reads.py; trimming.py; log_index.py; docs/topics.md
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from magnetar.config.topic import TopicConfig
from magnetar.errors import MagnetarError, TopicFencedError
from magnetar.ledger.writer import LedgerWriter
from magnetar.topic.chain import LedgerChain, LedgerSpan
from magnetar.topic.ledger_keeper import LedgerKeeper
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.log_index import LogIndex
from magnetar.topic.log_parts import LogListener, LogParts
from magnetar.topic.log_reads import LogReads
from magnetar.topic.log_search import first_position_where, time_of
from magnetar.topic.node import TopicNode
from magnetar.topic.opening import open_node
from magnetar.topic.position import Position
from magnetar.topic.switching import delete_ledgers
from magnetar.topic.trimming import Retention, ledgers_to_drop
from magnetar.wire.bookkeeper.frames import Buffer

_position: Final = tuple.__new__  # Half the price of Position(…), for every entry.


class TopicLog:
    """Made by `open`; ended by `aclose` or `delete`, also after `on_fenced`."""

    def __init__(self, node: TopicNode, parts: LogParts, config: TopicConfig, listener: LogListener) -> None:
        """For `open` only."""
        self.name = node.name
        self.chain: LedgerChain = node.chain
        """It has grown when `on_appended` is called."""
        self._node = node
        self._parts = parts
        self._config = config
        self._listener = listener
        self._tail = parts.tail_cache.tail()
        self._reads = LogReads(self.chain, parts.client, config)
        self._index = LogIndex(node, self._read_one, self._reads.read)
        self._watchers: tuple[Callable[[], None], ...] = ()
        self._held: dict[str, Position] = {}
        self._keeper: LedgerKeeper

    @classmethod
    async def open(
        cls, name: str, parts: LogParts, config: TopicConfig, listener: LogListener, *, create: bool = True
    ) -> TopicLog:
        """`name` is the managed ledger's: `tenant/namespace/persistent/encoded-name`.

        Whoever owned the log before is fenced when this returns. TopicNotFoundError without `create`; TopicFencedError
        if another broker opens it at the same moment.
        """
        node = await open_node(name, parts, create=create)
        self = cls(node, parts, config, listener)
        node.next_index = await self._index.recover()
        self._keeper = LedgerKeeper(node, parts, config, node.next_index, self)
        await self._keeper.begin()
        return self

    # --- what is known ------------------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether `append` should be called now. If not, `on_room` will be heard."""
        return self._keeper.appender.has_room

    @property
    def last_confirmed(self) -> Position:
        return self.chain.last_confirmed

    @property
    def next_index(self) -> int:
        """Of the next message that is appended."""
        return self._keeper.appender.next_index

    @property
    def next_confirmed_index(self) -> int:
        """Behind the last confirmed message: what `index_of` says of the end."""
        return self._node.next_index

    @property
    def is_new(self) -> bool:
        """Whether it was made by being opened: nobody has had it before."""
        return self._node.is_new

    @property
    def is_terminated(self) -> bool:
        return self._node.terminated is not None

    @property
    def is_fenced(self) -> bool:
        return self._keeper.error is not None

    @property
    def properties(self) -> dict[str, str]:
        """Of the topic, as its node has them."""
        return dict(self._node.properties)

    @property
    def appends_waiting(self) -> int:
        """Entries that wait for a ledger."""
        return self._keeper.appender.waiting

    async def check_owner(self) -> None:
        """TopicFencedError if another broker has opened the log since. That it has not, may change at any time."""
        await self._node.check_owner()

    # --- writing ------------------------------------------------------------------------------------------------------

    def append(self, headers_and_payload: Buffer, messages: int, token: Any) -> None:
        """Puts the broker's header before it, and writes both; the buffer is copied. The listener hears of the token.

        Nothing was appended if it raises: LogBusyError, EntryTooLargeError, TopicTerminatedError, TopicFencedError.
        """
        self._keeper.appender.append(headers_and_payload, messages, token)

    async def roll(self) -> None:
        """Begins a new ledger, unless the one that is written has no entries yet."""
        await self._keeper.roll()

    async def roll_if_due(self) -> bool:
        """For a topic that nobody writes to: its owner calls this now and then."""
        return await self._keeper.roll_if_due()

    async def terminate(self) -> Position:
        """The log takes no more, for ever. Returns its last entry. Appends that wait for a ledger fail."""
        return await self._keeper.terminate()

    async def set_property(self, key: str, value: str | None) -> None:
        """Of the topic; None removes it."""
        self._keeper.check_open()
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
            self._keeper.fail(error)
            raise

    # --- what becomes of appends (called by the keeper) ---------------------------------------------------------------

    def on_run(self, ledger: LedgerWriter, first_entry_id: int, entries: Sequence[LogEntry]) -> None:
        ledger_id = ledger.ledger_id
        tokens = []
        messages = 0
        for entry_id, entry in enumerate(entries, first_entry_id):
            entry.position = _position(Position, (ledger_id, entry_id))
            tokens.append(entry.token)
            entry.token = None
            messages += entry.known_messages
        self._node.next_index += messages
        self.chain.grow(first_entry_id + len(entries), ledger.length)
        self._tail.add(ledger_id, first_entry_id, entries)
        self._listener.on_appended(entries[0].position, tokens)
        for callback in self._watchers:
            callback()

    def on_room(self) -> None:
        self._listener.on_room()

    def on_lost(self, entries: Sequence[LogEntry], error: MagnetarError) -> None:
        self._listener.on_append_failed([entry.token for entry in entries], error)

    def on_over(self, error: MagnetarError) -> None:
        self._listener.on_fenced(error)

    # --- reading ------------------------------------------------------------------------------------------------------

    def read_nowait(self, first: Position, entries_max: int, bytes_max: int) -> list[LogEntry] | None:
        """From the tail cache, as `read`; None if the entry is not there: ask `read`. [] behind the last entry."""
        found = self._tail.read(first, entries_max, bytes_max)
        if found is not None:
            return found
        chain = self.chain
        if chain.contains(first):
            return None
        first = chain.next_position(first)
        return self._tail.read(first, entries_max, bytes_max) if chain.contains(first) else []

    async def read(self, first: Position, entries_max: int, bytes_max: int) -> list[LogEntry]:
        """From the first entry at or behind `first` on, at least one; [] if there is none. Never beyond the last
        confirmed one. As many as one answer of a bookie brings, within the limits."""
        found = self.read_nowait(first, entries_max, bytes_max)
        return found if found is not None else await self._reads.read(first, entries_max, bytes_max)

    async def _read_one(self, position: Position) -> LogEntry:
        found = self._tail.read(position, 1, 1)
        return found[0] if found else await self._reads.read_one(position)

    def release_tail(self, up_to: Position) -> None:
        """All readers have passed this entry: its memory may go."""
        self._tail.release(up_to)

    def watch_tail(self, callback: Callable[[], None]) -> None:
        """Called once per confirmed run, after `on_appended`."""
        self._watchers = (*self._watchers, callback)

    def unwatch_tail(self, callback: Callable[[], None]) -> None:
        self._watchers = tuple(watcher for watcher in self._watchers if watcher != callback)

    # --- looking for positions ----------------------------------------------------------------------------------------

    async def position_at_time(self, publish_ms: int) -> Position:
        """Of the first entry that was published at this time or later, or `chain.end`."""
        return await first_position_where(self.chain, self._read_one, lambda entry: time_of(entry) >= publish_ms)

    async def position_at_index(self, index: int) -> Position:
        """Of the entry with this message; the first entry there is, or `chain.end`, if it lies outside."""
        return await self._index.position_at(index)

    async def index_of(self, position: Position) -> int:
        """Of the first message at or behind this position; `next_confirmed_index` at the end."""
        return await self._index.index_of(position)

    # --- giving room back ---------------------------------------------------------------------------------------------

    def hold(self, key: str, after: Position | None) -> None:
        """Nothing behind this position is trimmed, until it is called with None."""
        if after is None:
            self._held.pop(key, None)
        else:
            self._held[key] = after

    async def trim(self, consumed: Position, *, retention_ms: int = 0, retention_bytes: int = 0) -> list[LedgerSpan]:
        """Drops ledgers that are read by everybody and not retained (trimming.py); returns them.

        `consumed` is the mark-delete of the slowest durable cursor, LATEST if there is none.
        """
        self._keeper.check_open()
        return await self._node.change(self._trim(consumed, Retention(retention_ms, retention_bytes)))

    async def _trim(self, consumed: Position, retention: Retention) -> list[LedgerSpan]:
        consumed = min(consumed, *self._held.values()) if self._held else consumed
        return await self._drop(ledgers_to_drop(self.chain.spans, consumed, retention, self._parts.entropy.wall_ms()))

    async def _drop(self, spans: list[LedgerSpan]) -> list[LedgerSpan]:
        if spans:
            gone = [span.ledger_id for span in spans]
            await self._write([span for span in self.chain.spans if span.ledger_id not in gone])
            self.chain.drop(gone)
            self._reads.forget(gone)
            await delete_ledgers(self._parts.client, spans)
        return spans

    # --- the end ------------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """What is in flight is still written and acknowledged; what waits for a ledger fails; the ledger is closed."""
        await self._keeper.aclose()
        await self._forget()

    async def give_up(self) -> None:
        """Ends at once: what is under way is cancelled, and the next owner recovers the ledger. Again is harmless."""
        await self._keeper.release(wait_s=0.0)
        await self._forget()

    async def delete(self) -> None:
        """The topic's node first, then its ledgers. NotEmptyError while it has cursors."""
        self._keeper.check_open()
        await self._node.change(self._delete_node())
        await self._keeper.release()
        await self._forget()
        await delete_ledgers(self._parts.client, self.chain.spans)

    async def _delete_node(self) -> None:
        try:
            await self._node.delete()
        except TopicFencedError as error:
            self._keeper.fail(error)
            raise

    async def _forget(self) -> None:
        self._watchers = ()
        self._tail.clear()
        await self._reads.aclose()
