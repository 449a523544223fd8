"""Conversions: entries in the form of the other protocol, made once for all readers that come soon.

Limits:    The bytes of all conversions; the one that was not used for longest is dropped first. An entry that is read
           from the bookies again is another object, and is converted again.
Failure:   A batch that cannot be opened is passed on to Pulsar's readers as one message with its bytes, as a broker of
           Apache's does; Kafka's readers get a gap instead of an entry that cannot be read. Each is logged.
Read next: kafka.py
"""

from __future__ import annotations

import logging
from collections import OrderedDict

from magnetar.errors import MalformedEntryError, MissingDependencyError
from magnetar.topic.entry_format import kafka
from magnetar.topic.log_entry import LogEntry
from magnetar.wire.bookkeeper.frames import Buffer

log = logging.getLogger(__name__)


class Conversions:
    def __init__(self, bytes_max: int, decompressed_bytes_max: int) -> None:
        self.decompressed_bytes_max = decompressed_bytes_max
        self.bytes_held = 0
        self.made = 0
        self._bytes_max = bytes_max
        self._kept: OrderedDict[LogEntry, Buffer] = OrderedDict()  # By identity: entries have no other.

    def for_pulsar(self, entry: LogEntry) -> Buffer:
        """Returns an entry of Kafka's, with the broker's header, as Pulsar's clients read it; any other as it is."""
        if not kafka.is_kafka(entry.data):
            return entry.data
        kept = self._find(entry)
        if kept is not None:
            return kept
        try:
            made: Buffer = kafka.as_pulsar(entry.data, self.decompressed_bytes_max)
        except MalformedEntryError as error:
            log.warning("a batch is passed on as it is", extra={"position": str(entry.position), "why": str(error)})
            made = entry.data
        return self._keep(entry, made)

    def for_kafka(self, entry: LogEntry, first_index: int, messages: int, leader_epoch: int) -> Buffer:
        """Returns an entry of Pulsar's as Kafka's clients read it."""
        kept = self._find(entry)
        if kept is not None:
            return kept
        try:
            limit = self.decompressed_bytes_max
            made = kafka.as_kafka(entry.head, entry.data, first_index, messages, leader_epoch, limit)
        except (MalformedEntryError, MissingDependencyError) as error:
            log.warning(
                "an entry is left out for Kafka clients", extra={"position": str(entry.position), "why": str(error)}
            )
            made = kafka.gap(first_index, messages, leader_epoch)
        return self._keep(entry, made)

    def _find(self, entry: LogEntry) -> Buffer | None:
        kept = self._kept.get(entry)
        if kept is not None:
            self._kept.move_to_end(entry)
        return kept

    def _keep(self, entry: LogEntry, made: Buffer) -> Buffer:
        self.made += 1
        self._kept[entry] = made
        self.bytes_held += len(made) + len(entry.data)
        while self.bytes_held > self._bytes_max:
            oldest, dropped = self._kept.popitem(last=False)
            self.bytes_held -= len(dropped) + len(oldest.data)
        return made
