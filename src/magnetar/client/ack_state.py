"""Which messages of a batch are acknowledged yet, and what to tell the broker. Pure.

An entry is acknowledged when all of its messages are. Before that, only a broker that keeps batch indexes can be told;
it gets the messages that are left, as the bits of a Java bit set.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from magnetar.client.message import Message, MessageId
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import MessageIdData

BATCHES_MAX: Final = 100_000  # Partly acknowledged or not at all; of the oldest beyond, only single indexes are told.
_WORD: Final = 2**64


class AckState:
    """Of one consumer."""

    def __init__(self, *, tells_indexes: bool) -> None:
        self._tells_indexes = tells_indexes
        self._unacked: dict[tuple[int, int], int] = {}

    def on_received(self, messages: list[Message]) -> None:
        """The messages of one delivery that are not acknowledged yet."""
        if messages and messages[0].batch_size > 1:
            bits = 0
            for message in messages:
                bits |= 1 << message.id.batch_index
            self._unacked[messages[0].id[:2]] = bits
            if len(self._unacked) > BATCHES_MAX:
                del self._unacked[next(iter(self._unacked))]

    def acknowledge(self, messages: Iterable[Message]) -> list[MessageIdData]:
        """What to send for them: once for each entry, and nothing where the rest of the batch decides."""
        told: dict[tuple[int, int], tuple[MessageId, int]] = {}
        for message in messages:
            if message.batch_size > 1:
                entry = message.id[:2]
                left = self._left(message) & ~(1 << message.id.batch_index)
                if entry in self._unacked:
                    self._unacked[entry] = left
                told[entry] = message.id, left
            else:
                told.update({part[:2]: (part, 0) for part in message.chunk_ids or (message.id,)})
        return [data for message_id, left in told.values() for data in self._tell(message_id, left)]

    def acknowledge_to(self, message: Message) -> list[MessageIdData]:
        """The same for all up to and including it."""
        entry = message.id[:2]
        for older in [key for key in self._unacked if key < entry]:
            del self._unacked[older]
        if message.batch_size <= 1:
            return [_whole(message.id)]
        left = self._left(message) & ~((2 << message.id.batch_index) - 1)
        if entry in self._unacked:
            self._unacked[entry] = left
        return self._tell(message.id, left)

    def clear(self) -> None:
        self._unacked.clear()

    def _left(self, message: Message) -> int:
        return self._unacked.get(message.id[:2], (1 << message.batch_size) - 1)

    def _tell(self, message_id: MessageId, left: int) -> list[MessageIdData]:
        if not left:
            self._unacked.pop(message_id[:2], None)
            return [_whole(message_id)]
        if not self._tells_indexes:
            return []
        data = _whole(message_id)
        data.ack_set.extend(words_of(left))
        return [data]


def words_of(bits: int) -> list[int]:
    """Signed words of 64 bits, the lowest first."""
    words = []
    while bits:
        word = bits % _WORD
        words.append(word - _WORD if word >= _WORD // 2 else word)
        bits //= _WORD
    return words


def _whole(message_id: MessageId) -> MessageIdData:
    return message_id._replace(batch_index=-1).to_wire()
