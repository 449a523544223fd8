"""What a consumer has acknowledged, or refused for now, and what to send to the broker for it.

An entry is acknowledged when all of its messages are. Before that, only a broker that keeps batch indexes is informed;
it gets the messages that are left, as the bits of a Java bit set. Entries that the application wants again after a
pause wait in `NegativeAcks`; one timer is set, for the first entry that is due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from magnetar.client.values import Message, MessageId
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import MessageIdData

BATCHES_MAX: Final = 100_000  # Batches that are followed; for older ones only the acknowledged index is sent.
_WORD: Final = 2**64


class AckState:
    """Knows what one consumer has acknowledged. Pure."""

    def __init__(self, *, sends_indexes: bool) -> None:
        self._sends_indexes = sends_indexes
        self._unacked: dict[tuple[int, int], int] = {}

    def on_received(self, messages: list[Message]) -> None:
        """`messages` are those of one delivery that are not acknowledged yet."""
        if messages and messages[0].batch_size > 1:
            bits = 0
            for message in messages:
                bits |= 1 << message.id.batch_index
            self._unacked[messages[0].id[:2]] = bits
            if len(self._unacked) > BATCHES_MAX:
                del self._unacked[next(iter(self._unacked))]

    def acknowledge(self, messages: Iterable[Message]) -> list[MessageIdData]:
        """Returns what to send: one id for each entry, and none if other messages of its batch decide."""
        changed: dict[tuple[int, int], tuple[MessageId, int]] = {}
        for message in messages:
            if message.batch_size > 1:
                entry = message.id[:2]
                left = self._left(message) & ~(1 << message.id.batch_index)
                if entry in self._unacked:
                    self._unacked[entry] = left
                changed[entry] = message.id, left
            else:
                changed.update({part[:2]: (part, 0) for part in message.chunk_ids or (message.id,)})
        return [data for message_id, left in changed.values() for data in self._ids_for(message_id, left)]

    def acknowledge_to(self, message: Message) -> list[MessageIdData]:
        """Returns the same for all messages up to and including this one."""
        entry = message.id[:2]
        for older in [key for key in self._unacked if key < entry]:
            del self._unacked[older]
        if message.batch_size <= 1:
            return [_whole(message.id)]
        left = self._left(message) & ~((2 << message.id.batch_index) - 1)
        if entry in self._unacked:
            self._unacked[entry] = left
        return self._ids_for(message.id, left)

    def clear(self) -> None:
        self._unacked.clear()

    def _left(self, message: Message) -> int:
        return self._unacked.get(message.id[:2], (1 << message.batch_size) - 1)

    def _ids_for(self, message_id: MessageId, left: int) -> list[MessageIdData]:
        if not left:
            self._unacked.pop(message_id[:2], None)
            return [_whole(message_id)]
        if not self._sends_indexes:
            return []
        data = _whole(message_id)
        data.ack_set.extend(words_of(left))
        return [data]


def words_of(bits: int) -> list[int]:
    """Returns signed words of 64 bits, the lowest first."""
    words = []
    while bits:
        word = bits % _WORD
        words.append(word - _WORD if word >= _WORD // 2 else word)
        bits //= _WORD
    return words


def _whole(message_id: MessageId) -> MessageIdData:
    return message_id._replace(batch_index=-1).to_wire()


class NegativeAcks:
    """Holds the entries that one consumer wants again."""

    def __init__(self, delay_s: float, on_due: Callable[[list[MessageIdData]], None]) -> None:
        self._delay_s = delay_s
        self._on_due = on_due
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[tuple[int, int], tuple[float, MessageIdData]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, message_id: MessageId) -> None:
        """Adds the whole entry of this message, once."""
        due = self._loop.time() + self._delay_s
        self._waiting[message_id[:2]] = (due, message_id._replace(batch_index=-1).to_wire())
        if self._timer is None:
            self._timer = self._loop.call_at(due, self._on_timer)

    def clear(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._waiting.clear()

    def _on_timer(self) -> None:
        self._timer = None
        now = self._loop.time()
        due = [entry for entry, (when, _) in self._waiting.items() if when <= now]
        self._on_due([self._waiting.pop(entry)[1] for entry in due])
        if self._waiting:
            next_due = min(when for when, _ in self._waiting.values())
            self._timer = self._loop.call_at(next_due, self._on_timer)
