"""A reader of whole entries of a topic without partitions, or of one partition, as the broker sends them.

For whoever opens entries by the thousand and needs them as they are stored. A broker that was told to give clients its
own header gives it; else the entry begins with what the producer sent.
Bound:     so many bytes should be on their way; as a broker counts messages, how many that are is learnt from those
           that came. Half of them are asked for at a time.
Gaps:      entries that are not for clients (markers) do not come: their ids are missing between those that do.
Again:     after a lost connection it goes on behind the last entry that was taken.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, NamedTuple

from magnetar.client.brokers import Brokers
from magnetar.client.connection import Connection
from magnetar.client.message import MessageId, id_from_wire
from magnetar.client.options import ConsumerOptions
from magnetar.client.topic_consumer import TopicConsumer
from magnetar.errors import EndOfTopicError, MagnetarError, MalformedEntryError
from magnetar.wire.pulsar.encode import encode_command, encode_flow
from magnetar.wire.pulsar.entry import messages_in, parse_entry
from magnetar.wire.pulsar.frames import Frame
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand, CommandAck, CommandMessage

BYTES_AHEAD: Final = 16 * 2**20
_MESSAGES_FIRST: Final = 16  # On their way before the size of this topic's messages is known: 80 MB at the very most.
_MESSAGES_MAX: Final = 10_000


class RawEntry(NamedTuple):
    ledger_id: int
    entry_id: int
    messages: int
    data: bytes


class RawReader(TopicConsumer):
    """Made by `PulsarClient.raw_reader`."""

    def __init__(self, brokers: Brokers, topic: str, name: str, after: MessageId) -> None:
        options = ConsumerOptions(batch_index_acks=False, force_topic_creation=False)
        super().__init__(brokers, topic, name, options, start=after)
        self._entries: deque[RawEntry] = deque()
        self._something = asyncio.Event()
        self._asked = 0
        """Messages that the broker may still send, or that wait here; below 0 where a batch had more than were left."""
        self._messages_seen = self._bytes_seen = 0

    async def take(self, timeout_s: float) -> list[RawEntry]:
        """All that are here, at least one. TimeoutError; EndOfTopicError behind the last one of a terminated topic."""
        async with asyncio.timeout(timeout_s):
            while not self._entries:
                self._check_open()
                if self.is_at_end:
                    raise EndOfTopicError(f"{self.topic} was terminated, and all of it was read")
                self._something.clear()
                await self._something.wait()
        taken, self._entries = list(self._entries), deque()
        self._on_entries_taken(taken)
        return taken

    async def marked(self) -> MessageId | None:
        """Up to where the broker takes everything for read, markers included."""
        return (await self.last_ids())[1]

    # --- inside -------------------------------------------------------------------------------------------------------

    def _on_entries_taken(self, taken: list[RawEntry]) -> None:
        last = taken[-1]
        self._start = self._behind = MessageId(last.ledger_id, last.entry_id)
        self._asked -= sum(entry.messages for entry in taken)
        connection = self.connection
        if connection is not None:
            ack = self._ack_command([self._start.to_wire()], CommandAck.Cumulative)
            connection.send(encode_command(ack))  # So that it knows what is left, and tells the end of the topic.
            self._ask_more(connection)

    def _ask_more(self, connection: Connection) -> None:
        wanted = _MESSAGES_FIRST
        if self._messages_seen:
            wanted = max(1, min(BYTES_AHEAD * self._messages_seen // max(self._bytes_seen, 1), _MESSAGES_MAX))
        if self._asked * 2 <= wanted:
            connection.send(encode_flow(self.id, wanted - self._asked))
            self._asked = wanted

    def _on_attached(self, connection: Connection) -> None:
        self._entries.clear()
        self._asked = 0
        self._is_seeking = False
        self._ask_more(connection)

    def _on_message(self, command: CommandMessage, data: bytes) -> None:
        ledger_id, entry_id, *_ = id_from_wire(command.message_id, -1)
        messages = _messages(data)
        if self._behind is not None and (ledger_id, entry_id) <= self._behind[:2]:
            self._asked -= messages  # A broker begins with the entry that it is told, and not behind it.
            if self.connection is not None:
                self._ask_more(self.connection)
            return
        self._messages_seen += messages
        self._bytes_seen += len(data)
        self._entries.append(RawEntry(ledger_id, entry_id, messages, data))
        self._something.set()

    def on_frame(self, frame: Frame) -> None:
        super().on_frame(frame)
        if frame.command.type == BaseCommand.REACHED_END_OF_TOPIC:
            self._something.set()

    def _on_over(self, error: MagnetarError) -> None:
        super()._on_over(error)
        self._something.set()


def _messages(data: bytes) -> int:
    try:
        return messages_in(parse_entry(data).metadata)
    except MalformedEntryError:  # For a broker that, too, is one message; whoever opens it says what is wrong.
        return 1
