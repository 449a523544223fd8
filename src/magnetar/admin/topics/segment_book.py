"""SegmentBook: what a broker knows about the ledgers of topics, for clients that read them from the bookies.

The index and the time of a ledger's first message are read once, with one entry; they never change. The metadata of a
closed ledger is kept for a minute: its bookies may be replaced, and a client that misses one asks again anyway.

Failure:   A ledger of the topic whose first entry cannot be read is returned without index and time: the other ledgers
           can be read, and a client that wants this one gets its error then. It is tried again the next time.
Limits:    The number of ledgers (the least recently used leave first), of concurrent reads, and of requests that wait
           for a tail.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from magnetar.errors import LedgerError, LedgerOffloadedError, MalformedEntryError, NoSuchLedgerError
from magnetar.ledger.client import LedgerClient
from magnetar.metadata.bookkeeper.ledger_codec import encode
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.topic.chain import LedgerSpan
from magnetar.topic.log.index import index_of_last, time_of
from magnetar.topic.log.log import TopicLog
from magnetar.topic.log.managed_ledger import is_offloaded
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import Position
from magnetar.wire.bookkeeper.digests import DigestType

logger = logging.getLogger(__name__)

WAITING_MAX: Final = 100
"""A request that waits for a topic's tail holds one of the 200 that the server accepts at a time."""
_LEDGERS_MAX: Final = 20_000  # Some 500 bytes each.
_AT_A_TIME_MAX: Final = 32
_METADATA_S_MAX: Final = 60.0
_FIRSTS_S_MAX: Final = 10.0  # For all ledgers of one request, whose client waits half a minute.
UNREADABLE: Final = (LedgerError, LedgerOffloadedError, NoSuchLedgerError)
"""The errors of a read of an entry that cannot be read, now or ever."""


@dataclass(frozen=True, slots=True)
class LedgerFacts:
    """What is known of a ledger besides its span."""

    first_index: int | None = None
    """None if it is unknown: the ledger has no entries yet, or its first one cannot be read."""
    first_publish_ms: int | None = None
    metadata: LedgerMetadata | None = None
    """None if the ledger is no longer on bookies: offloaded or deleted."""
    fresh_until: float = 0.0

    @property
    def encoded(self) -> bytes:
        return b"" if self.metadata is None else encode(self.metadata)

    @property
    def digest_type(self) -> DigestType:
        """The ledger's own, or the brokers' for the oldest ledgers, whose metadata lacks it."""
        return DigestType.CRC32C if self.metadata is None else self.metadata.digest_type or DigestType.CRC32C

    @property
    def password(self) -> bytes:
        return b"" if self.metadata is None else self.metadata.password or b""


class SegmentBook:
    """Serves one broker. Owns nothing that must be closed."""

    def __init__(self) -> None:
        self._facts: OrderedDict[int, LedgerFacts] = OrderedDict()
        self._room = asyncio.Semaphore(_AT_A_TIME_MAX)
        self._waiting = 0

    async def facts_of(self, log: TopicLog, client: LedgerClient, spans: Sequence[LedgerSpan]) -> list[LedgerFacts]:
        """Raises NoSuchLedgerError if one of them was trimmed meanwhile."""
        now = asyncio.get_running_loop().time()
        return list(await asyncio.gather(*(self._facts_of(log, client, span, now) for span in spans)))

    async def _facts_of(self, log: TopicLog, client: LedgerClient, span: LedgerSpan, now: float) -> LedgerFacts:
        known = self._facts.get(span.ledger_id, LedgerFacts())
        has_index = known.first_index is not None or not span.entries
        if has_index and now < known.fresh_until:
            self._facts.move_to_end(span.ledger_id)
            return known
        async with self._room:
            if now >= known.fresh_until:
                known = await _with_metadata(known, client, span, now)
            if not has_index and known.metadata is not None:
                known = await _with_first(known, log, span.ledger_id, now + _FIRSTS_S_MAX)
            if log.chain.span_of(span.ledger_id) is None:
                raise NoSuchLedgerError(f"ledger {span.ledger_id} was trimmed meanwhile")
        self._keep(span.ledger_id, known)
        return known

    def _keep(self, ledger_id: int, facts: LedgerFacts) -> None:
        self._facts[ledger_id] = facts
        self._facts.move_to_end(ledger_id)
        while len(self._facts) > _LEDGERS_MAX:
            self._facts.popitem(last=False)

    async def wait_beyond(self, log: TopicLog, after: Position, timeout_s: float) -> bool:
        """Returns True when something after `after` is confirmed, False when the time is over.

        It returns False at once if too many wait already: the caller asks again later.
        """
        if log.last_confirmed > after:
            return True
        if self._waiting >= WAITING_MAX:
            return False
        self._waiting += 1
        moved = asyncio.Event()

        def look() -> None:
            if log.last_confirmed > after:
                moved.set()

        log.watch_tail(look)
        try:
            async with asyncio.timeout(timeout_s):
                await moved.wait()
        except TimeoutError:
            pass
        finally:
            self._waiting -= 1
            log.unwatch_tail(look)
        return True


async def _with_metadata(known: LedgerFacts, client: LedgerClient, span: LedgerSpan, now: float) -> LedgerFacts:
    try:
        metadata = await client.metadata(span.ledger_id)
    except NoSuchLedgerError:
        return replace(known, metadata=None, fresh_until=now + _METADATA_S_MAX if is_offloaded(span) else 0.0)
    return replace(known, metadata=metadata, fresh_until=now + _METADATA_S_MAX if metadata.is_closed else 0.0)


async def _with_first(known: LedgerFacts, log: TopicLog, ledger_id: int, deadline: float) -> LedgerFacts:
    try:
        async with asyncio.timeout_at(deadline):
            index, publish_ms = await _first_of(log, ledger_id)
    except (*UNREADABLE, TimeoutError) as error:
        if log.chain.span_of(ledger_id) is not None:
            why = str(error) or f"it is not read within {_FIRSTS_S_MAX:g} s"
            logger.warning("the first index of ledger %d cannot be read: %s", ledger_id, why)
        return known
    return replace(known, first_index=index, first_publish_ms=publish_ms)


async def _first_of(log: TopicLog, ledger_id: int) -> tuple[int, int | None]:
    """Returns index and time."""
    position = Position(ledger_id, 0)
    entries = await log.read(position, 1, 1)
    if not entries or entries[0].position != position:
        raise NoSuchLedgerError(f"ledger {ledger_id} was trimmed meanwhile")
    index = _first_index(entries[0])
    if index is None:
        index = await log.index_of(position)
    return index, _publish_ms(entries[0])


def _first_index(entry: LogEntry) -> int | None:
    """Returns None if the entry does not carry it."""
    last = index_of_last(entry)
    try:
        return None if last is None else last - entry.messages + 1
    except MalformedEntryError:
        return None


def _publish_ms(entry: LogEntry) -> int | None:
    try:
        return time_of(entry)
    except MalformedEntryError:
        return None
