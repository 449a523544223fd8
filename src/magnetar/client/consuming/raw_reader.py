"""A reader of whole entries of a topic without partitions, or of one partition, as the broker sends them.

It is made for programs that open entries by the thousand and need them as they are stored. A broker that is configured
to give clients its own header sends it; otherwise an entry begins with what the producer sent. Entries that are not for
clients (markers) do not come: their ids are missing between the others. After a lost connection it continues after the
last entry that was taken.

Limits:    BYTES_AHEAD bytes should be requested at a time. A broker counts messages, so the size of the messages that
           came decides how many these are. More are requested when half of them are left.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, NamedTuple

from magnetar.client.brokers import Brokers
from magnetar.client.connection import Connection
from magnetar.client.consuming.subscriber import Subscriber
from magnetar.client.values import ConsumerOptions, MessageId, id_from_wire
from magnetar.errors import EndOfTopicError, MagnetarError, MalformedEntryError
from magnetar.wire.pulsar.encode import encode_command, encode_flow
from magnetar.wire.pulsar.entry import messages_in, parse_entry
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import CommandAck, CommandMessage

BYTES_AHEAD: Final = 16 * 2**20
_MESSAGES_FIRST: Final = 16  # Requested before the size of this topic's messages is known: at most 80 MB.
_MESSAGES_MAX: Final = 10_000


class RawEntry(NamedTuple):
    ledger_id: int
    entry_id: int
    messages: int
    data: bytes


class RawReader(Subscriber):
    """Is made by `PulsarClient.raw_reader`."""

    def __init__(self, brokers: Brokers, topic: str, name: str, after: MessageId) -> None:
        options = ConsumerOptions(batch_index_acks=False, force_topic_creation=False)
        super().__init__(brokers, topic, name, options, start=after)
        self._entries: deque[RawEntry] = deque()
        self._something = asyncio.Event()
        self._asked = 0
        """Messages that the broker may still send, or that wait here. Below 0 if a batch had more than were left."""
        self._messages_seen = self._bytes_seen = 0

    async def take(self, timeout_s: float) -> list[RawEntry]:
        """Returns all entries that have come, at least one.

        Raises TimeoutError, and EndOfTopicError after the last entry of a terminated topic.
        """
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
        """Returns the position up to which the broker considers everything as read, markers included."""
        return (await self.last_ids())[1]

    def _on_entries_taken(self, taken: list[RawEntry]) -> None:
        last = taken[-1]
        self._start = self._after = MessageId(last.ledger_id, last.entry_id)
        self._asked -= sum(entry.messages for entry in taken)
        connection = self.connection
        if connection is not None:
            ack = self._ack_command([self._start.to_wire()], CommandAck.Cumulative)
            connection.send((encode_command(ack),))  # So that it knows what is left, and reports the end of the topic.
            self._ask_more(connection)

    def _ask_more(self, connection: Connection) -> None:
        wanted = _MESSAGES_FIRST
        if self._messages_seen:
            wanted = max(1, min(BYTES_AHEAD * self._messages_seen // max(self._bytes_seen, 1), _MESSAGES_MAX))
        if self._asked * 2 <= wanted:
            connection.send((encode_flow(self.id, wanted - self._asked),))
            self._asked = wanted

    def _on_attached(self, connection: Connection) -> None:
        self._entries.clear()
        self._asked = 0
        self._ask_more(connection)

    def _on_message(self, command: CommandMessage, data: bytes) -> None:
        ledger_id, entry_id, *_ = id_from_wire(command.message_id, -1)
        messages = _messages(data)
        if self._after is not None and (ledger_id, entry_id) <= self._after[:2]:
            self._asked -= messages  # A broker begins with the entry that it is given, not after it.
            if self.connection is not None:
                self._ask_more(self.connection)
            return
        self._messages_seen += messages
        self._bytes_seen += len(data)
        self._entries.append(RawEntry(ledger_id, entry_id, messages, data))
        self._something.set()

    def _on_end(self) -> None:
        self._something.set()

    def _on_over(self, error: MagnetarError) -> None:
        del error
        self._something.set()


def _messages(data: bytes) -> int:
    try:
        return messages_in(parse_entry(data).metadata)
    except MalformedEntryError:  # A broker counts it as one message, too; an error follows when it is opened.
        return 1
