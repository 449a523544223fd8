"""EntryStamp: the broker's header before each entry that is appended, with the index of its last message and the time.

The header is joined with what the producer sent; that is the only copy of the entry. The header is made once per
millisecond, but for the lower 14 bits of the index, which are looked up. The first 128 messages of a topic, whose index
is one byte, have one made each time.

Order:     Indexes only grow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from magnetar.wire.bookkeeper.frames import Buffer
from magnetar.wire.pulsar.entry import broker_entry_header
from magnetar.wire.pulsar.varints import LAST_DIGITS, LOWER_DIGITS, varint

_LOWER_BITS: Final = 14
_LOWER_MASK: Final = 2**_LOWER_BITS - 1
_TWO_BYTES_MIN: Final = 2**7


class EntryStamp:
    def __init__(self, wall_ms: Callable[[], int]) -> None:
        self._wall_ms = wall_ms
        self._made_ms = -1
        self._upper = -1
        """The index in the current header, without the lower bits."""
        self._before = b""
        self._digits = LAST_DIGITS
        """The encodings of the lower bits, two bytes each, as far as they were used."""
        self._after = b""

    def on(self, index_of_last: int, body: Buffer) -> bytes:
        """Returns the entry as it is stored. `body` is what the producer sent."""
        now_ms = self._wall_ms()
        upper = index_of_last >> _LOWER_BITS
        if now_ms != self._made_ms or upper != self._upper:
            if index_of_last < _TWO_BYTES_MIN:
                return b"".join((broker_entry_header(index_of_last, now_ms), body))
            self._make(upper, now_ms)
        return b"".join((self._before, self._digits[index_of_last & _LOWER_MASK], self._after, body))

    def _make(self, upper: int, now_ms: int) -> None:
        self._upper, self._made_ms = upper, now_ms
        self._digits, self._after = (LOWER_DIGITS, varint(upper)) if upper else (LAST_DIGITS, b"")
        header = broker_entry_header(max(_TWO_BYTES_MIN, upper << _LOWER_BITS), now_ms)
        self._before = header[: -2 - len(self._after)]
