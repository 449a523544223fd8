"""Acknowledgement sets: which messages of a batch are not acknowledged yet, as a number and as the protocol's words.

Bit i is message i of the batch, and set means not acknowledged. Here it is one integer; on the wire and in stored
states it is a list of signed 64-bit words, least significant first, without zero words at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_WORD_BITS: Final = 64
_WORD_MASK: Final = 2**_WORD_BITS - 1
BATCH_MESSAGES_MAX: Final = 2**20
"""No client makes larger batches; what claims to be of one is not recorded."""

NONE_ACKNOWLEDGED: Final = -1
"""Of a batch of unknown size: every bit is set."""


def full_batch(batch_size: int) -> int:
    """None of so many messages is acknowledged. 0: of a batch of unknown size."""
    return (1 << batch_size) - 1 if 0 < batch_size <= BATCH_MESSAGES_MAX else NONE_ACKNOWLEDGED


def unacked_bits(words: Sequence[int], batch_size: int = 0) -> int:
    """Words → bits. More words than any batch has say nothing."""
    if len(words) * _WORD_BITS > BATCH_MESSAGES_MAX:
        return NONE_ACKNOWLEDGED
    bits = bits_of_words(words)
    return bits & full_batch(batch_size)


def bits_of_words(words: Sequence[int]) -> int:
    """Signed or unsigned 64-bit words → one integer."""
    packed = b"".join([(word & _WORD_MASK).to_bytes(8, "little") for word in words])
    return int.from_bytes(packed, "little")


def words_of(bits: int) -> list[int]:
    """One integer → signed 64-bit words, without zero words at the end."""
    assert bits >= 0
    count = -(-bits.bit_length() // _WORD_BITS)
    return list(memoryview(bits.to_bytes(count * 8, "little")).cast("q"))
