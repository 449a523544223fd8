"""Entries of a range through the topic's broker: for executors that cannot reach the bookies.

Same rows: the broker leaves markers out and, unless told to give it, its own header. So entries come in runs without a
           gap, and each run is told the index of its first message, counted on from that of the range.
End:       markers at the end of a range never come: when nothing comes for a while, the broker is asked how far it is.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from itertools import groupby
from typing import Final

from magnetar.client import PulsarClient
from magnetar.client.message import MessageId
from magnetar.client.raw_reader import RawEntry, RawReader
from magnetar.errors import BrokerTimeoutError, EndOfTopicError
from magnetar.runtime.system_entropy import SystemEntropy
from magnetar.spark.decoding.runs import EntryRun
from magnetar.spark.reading.ranges import Range
from magnetar.topic.position import Position

_QUIET_S: Final = 1.0  # Nothing came for so long: is there anything left?
_SILENCES_MAX: Final = 60

_clients: dict[str, PulsarClient] = {}
"""By service URL, of this process; used on the loop's thread only."""


def _client(service_url: str) -> PulsarClient:
    if service_url not in _clients:
        _clients[service_url] = PulsarClient(service_url, SystemEntropy())
    return _clients[service_url]


os.register_at_fork(after_in_child=_clients.clear)


async def read_through_broker(service_url: str, wanted: Range, first_index: int) -> AsyncIterator[EntryRun]:
    """Runs in order. Ends at the range's last entry, or where the topic has none of them any more."""
    start = MessageId(wanted.ledger.ledger_id, wanted.first)
    reader = await _client(service_url).raw_reader(wanted.topic, start)
    counter = _Counter(wanted, first_index)
    try:
        while not counter.is_done:
            entries = await _take(reader, counter)
            for run in counter.runs(entries):
                yield run
    finally:
        await reader.aclose()


async def _take(reader: RawReader, counter: _Counter) -> Sequence[RawEntry]:
    """Empty when the range is at its end without its last entry."""
    for _ in range(_SILENCES_MAX):
        try:
            return await reader.take(_QUIET_S)
        except EndOfTopicError:
            counter.end()
            return ()
        except TimeoutError:
            marked = await reader.marked()
            if marked is not None and Position(*marked[:2]) >= counter.last:
                counter.end()
                return ()
        await asyncio.sleep(0)
    raise BrokerTimeoutError(
        f"{reader.topic}: the broker sent nothing for {_QUIET_S * _SILENCES_MAX:g} s, and {counter.last} is not "
        "reached: it cannot read these entries, or keeps them back by a dispatch rate"
    )


class _Counter:
    """Cuts what comes into runs, and counts the index of their first messages."""

    def __init__(self, wanted: Range, first_index: int) -> None:
        self.is_done = False
        self.last = Position(wanted.ledger.ledger_id, wanted.last)
        self._wanted = wanted
        self._next_id = wanted.first
        self._next_index = first_index

    def end(self) -> None:
        self.is_done = True

    def runs(self, entries: Sequence[RawEntry]) -> list[EntryRun]:
        wanted = [entry for entry in entries if entry[:2] <= self.last]
        self.is_done = self.is_done or len(wanted) < len(entries) or (bool(wanted) and wanted[-1][:2] == self.last)
        grouped = groupby(enumerate(wanted), key=lambda numbered: numbered[1].entry_id - numbered[0])
        return [self._run([entry for _, entry in group]) for _, group in grouped]

    def _run(self, entries: list[RawEntry]) -> EntryRun:
        wanted, first = self._wanted, entries[0]
        first_index = self._next_index + first.entry_id - self._next_id  # A marker counts as one message.
        self._next_id = entries[-1].entry_id + 1
        self._next_index = first_index + sum(entry.messages for entry in entries)
        return EntryRun(
            wanted.topic,
            wanted.partition,
            first.ledger_id,
            first.entry_id,
            [entry.data for entry in entries],
            first_index,
            wanted.skipped if first.entry_id == wanted.first else 0,
            wanted.stop if entries[-1].entry_id == wanted.last else None,
        )
