"""From one ledger of a topic to the next: because the old one is full, old, or has failed.

Steps:     make the new ledger while the old one still takes entries; let entries wait; close the old one behind its
           last acknowledged entry; write the topic's node; let those who wait go to the new one, in order.
Safety:    no entry goes to a ledger before the node names it, so whoever takes the topic over finds every ledger that
           has entries, and a broker that lost the topic fails at the node and never acknowledges again.
Failure:   while the old ledger is good, a new one that cannot be made is tried again later. When it has failed, for
           `ledger_wait_ms`; then the topic must be unloaded.
Empty:     a ledger without entries is left out of the node, and deleted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from magnetar.config.topic import TopicConfig
from magnetar.errors import MagnetarError, NoSuchLedgerError, TopicFencedError
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.writer import LedgerWriter
from magnetar.runtime.backoff import Backoff
from magnetar.topic.appender import Appender, LedgerEvents
from magnetar.topic.chain import LedgerSpan
from magnetar.topic.log_parts import LogParts
from magnetar.topic.node import TopicNode

log = logging.getLogger(__name__)


class LedgerSwitch:
    """Makes the ledgers of one topic, and keeps the one that is written."""

    def __init__(self, node: TopicNode, appender: Appender, parts: LogParts, config: TopicConfig) -> None:
        self._node = node
        self._appender = appender
        self._parts = parts
        self._config = config
        self._loop = asyncio.get_running_loop()
        self.ledger: LedgerWriter | None = None
        """The one that is written; none before the first, and once the topic is terminated."""
        self.begun_s = 0.0
        self._is_over = False

    async def begin(self) -> None:
        """The first ledger of an owner: the node names it behind those that are there."""
        await self._go_on_with(await self._make())

    async def switch(self, old: LedgerWriter) -> None:
        """A change of the node: from this ledger to a new one. If it raises while the appender still writes, the old
        one is good."""
        if self.ledger is not old or self._is_over:  # Somebody was faster, or it is too late.
            return
        ledger = await self._make_patiently()
        try:
            await self.close_ledger()
        except BaseException:
            await self._discard(ledger)
            raise
        await self._go_on_with(ledger)

    def end(self) -> None:
        """From now on no ledger is given to the appender, also if one is under way."""
        self._is_over = True

    async def close_ledger(self) -> None:
        """A part of a change: entries wait from now on; the chain ends where the ledger does."""
        ledger = self.ledger
        if ledger is None:
            return
        self._appender.detach()
        await ledger.close()
        self._node.chain.grow(ledger.last_confirmed + 1, ledger.length)
        self._node.chain.close_last(self._parts.entropy.wall_ms())
        self.ledger = None

    async def _go_on_with(self, ledger: LedgerWriter) -> None:
        chain = self._node.chain
        kept, empty = split_empty(chain.spans)
        try:
            await self._node.write([*kept, LedgerSpan(ledger.ledger_id)])
        except TopicFencedError:
            await self._discard(ledger)
            raise
        except BaseException:  # The node may name it: its next owner will find it empty.
            await ledger.release()
            raise
        if self._is_over:  # The next owner will find it empty.
            await ledger.release()
            return
        chain.begin(ledger.ledger_id)
        chain.drop(span.ledger_id for span in empty)
        self.ledger = ledger
        self.begun_s = self._loop.time()
        self._appender.attach(ledger)
        await delete_ledgers(self._parts.client, empty)

    # --- making ledgers -----------------------------------------------------------------------------------------------

    async def _make_patiently(self) -> LedgerWriter:
        """Without a good ledger, as often as time allows."""
        backoff = Backoff(self._parts.entropy.random)
        deadline = self._loop.time() + self._config.ledger_wait_ms / 1000
        while True:
            try:
                return await self._make()
            except MagnetarError as error:
                is_good = self.ledger is not None and self.ledger.failure is None
                if is_good or not error.retryable or self._loop.time() >= deadline:
                    raise
                log.warning("a topic has no ledger to write to", extra={"topic": self._node.name, "why": str(error)})
            await asyncio.sleep(backoff.next_s())

    async def _make(self) -> LedgerWriter:
        events = LedgerEvents(self._appender)
        config = self._config
        events.writer = await self._parts.client.create(
            ensemble_size=config.ensemble_size,
            write_quorum=config.write_quorum,
            ack_quorum=config.ack_quorum,
            custom_metadata=ledger_description(self._node.name),
            listener=events,
        )
        return events.writer

    async def _discard(self, ledger: LedgerWriter) -> None:
        """Of a ledger that the node does not name: nobody else will delete it."""
        await ledger.release()
        if not await self._node.may_name(ledger.ledger_id):
            await delete_ledgers(self._parts.client, [LedgerSpan(ledger.ledger_id)])


def ledger_description(topic: str) -> dict[str, bytes]:
    """What Pulsar writes into the metadata of a topic's ledgers."""
    return {"application": b"pulsar", "component": b"managed-ledger", "pulsar/managed-ledger": topic.encode()}


def split_empty(spans: Iterable[LedgerSpan]) -> tuple[list[LedgerSpan], list[LedgerSpan]]:
    """Closed ledgers with entries, and those without."""
    kept: list[LedgerSpan] = []
    empty: list[LedgerSpan] = []
    for span in spans:
        (kept if span.entries else empty).append(span)
    return kept, empty


async def delete_ledgers(client: LedgerClient, spans: Iterable[LedgerSpan]) -> None:
    """Of ledgers that no node names any more. What cannot be deleted now is left, and logged."""
    for span in spans:
        try:
            await client.delete(span.ledger_id)
        except NoSuchLedgerError:
            continue
        except MagnetarError as error:
            log.warning("a ledger was not deleted", extra={"ledger_id": span.ledger_id, "why": str(error)})
