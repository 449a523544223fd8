"""SegmentBook: what a broker knows about ledgers of topics for those who read them from the bookies themselves.

Found:     the index and the time of a ledger's first message: one entry is read, once. They never change.
Not found: a ledger that the topic lists, and whose first entry cannot be read, is told without them: the others can be
           read, and whoever wants this one finds out what is wrong with it. It is tried again the next time.
Metadata:  of a closed ledger, kept for a minute: its bookies may be replaced, and who finds one gone asks anew anyway.
Bounds:    so many ledgers (the least recently used leave first), so many at a time, so many who wait for a tail.
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
from magnetar.topic.info import is_offloaded
from magnetar.topic.log import TopicLog
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.log_index import index_of_last
from magnetar.topic.log_search import time_of
from magnetar.topic.position import Position
from magnetar.wire.bookkeeper.digests import DigestType

logger = logging.getLogger(__name__)

WAITING_MAX: Final = 100
"""Who waits for a topic's tail holds one of the 200 requests that the server takes at a time."""
_LEDGERS_MAX: Final = 20_000  # Some 500 bytes each.
_AT_A_TIME_MAX: Final = 32
_METADATA_S_MAX: Final = 60.0
_FIRSTS_S_MAX: Final = 10.0  # For all ledgers of one question. Who asks waits half a minute.
UNREADABLE: Final = (LedgerError, LedgerOffloadedError, NoSuchLedgerError)
"""What a read of an entry raises that cannot be had, now or ever."""


@dataclass(frozen=True, slots=True)
class LedgerFacts:
    """What is known of a ledger besides its span."""

    first_index: int | None = None
    """None: not known, as it has no entries yet, or as its first one cannot be read."""
    first_publish_ms: int | None = None
    metadata: LedgerMetadata | None = None
    """None: the ledger is no longer on bookies: offloaded, or deleted under the topic."""
    fresh_until: float = 0.0

    @property
    def encoded(self) -> bytes:
        return b"" if self.metadata is None else encode(self.metadata)

    @property
    def digest_type(self) -> DigestType:
        """What brokers use, for the oldest ledgers, whose metadata does not say it."""
        return DigestType.CRC32C if self.metadata is None else self.metadata.digest_type or DigestType.CRC32C

    @property
    def password(self) -> bytes:
        return b"" if self.metadata is None else self.metadata.password or b""


class SegmentBook:
    """Of one broker. Owns nothing that must be closed."""

    def __init__(self) -> None:
        self._facts: OrderedDict[int, LedgerFacts] = OrderedDict()
        self._room = asyncio.Semaphore(_AT_A_TIME_MAX)
        self._waiting = 0

    async def facts_of(self, log: TopicLog, client: LedgerClient, spans: Sequence[LedgerSpan]) -> list[LedgerFacts]:
        """NoSuchLedgerError if one of them was trimmed meanwhile."""
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
        """Returns when something is confirmed behind `after`, or the time is over. False, and at once, if too many wait
        already: the caller asks again later."""
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
            logger.warning("the first index of ledger %d cannot be told: %s", ledger_id, why)
        return known
    return replace(known, first_index=index, first_publish_ms=publish_ms)


async def _first_of(log: TopicLog, ledger_id: int) -> tuple[int, int | None]:
    """Index and time."""
    position = Position(ledger_id, 0)
    entries = await log.read(position, 1, 1)
    if not entries or entries[0].position != position:
        raise NoSuchLedgerError(f"ledger {ledger_id} was trimmed meanwhile")
    index = _first_index(entries[0])
    if index is None:
        index = await log.index_of(position)
    return index, _publish_ms(entries[0])


def _first_index(entry: LogEntry) -> int | None:
    """None if the entry does not say it."""
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
