"""Mutations of a valid input: what damage, truncation and lies about lengths look like. All by one seeded generator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

MUTATIONS_MAX = 4  # More at once, and nothing gets past the first check of a decoder.
INPUT_BYTES_MAX = 1 << 20
_INTERESTING = (
    b"\x00",
    b"\xff",
    b"\x7f",
    b"\x80",
    b"-",
    b"-1",
    b"9" * 20,
    b"\n",
    b"\t",
    b"\r\n",
    b":",
    b"/",
    b'"',
    b"{",
    b"}",
)
_LENGTHS = (0, 1, 0x7F, 0x80, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 62)


def mutated(random: Random, corpus: Sequence[bytes]) -> bytes:
    """One of the corpus, changed a little; sometimes not at all, so that valid inputs stay among them."""
    data = random.choice(corpus)
    for _ in range(random.randrange(MUTATIONS_MAX + 1)):
        data = random.choice(_MUTATIONS)(random, data, corpus)
    return data[:INPUT_BYTES_MAX]


def _flip_bit(random: Random, data: bytes, _corpus: Sequence[bytes]) -> bytes:
    if not data:
        return data
    at = random.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :]


def _truncate(random: Random, data: bytes, _corpus: Sequence[bytes]) -> bytes:
    return data[: random.randrange(len(data) + 1)]


def _drop(random: Random, data: bytes, _corpus: Sequence[bytes]) -> bytes:
    start, end = _span(random, data)
    return data[:start] + data[end:]


def _repeat(random: Random, data: bytes, _corpus: Sequence[bytes]) -> bytes:
    start, end = _span(random, data)
    return data[:end] + data[start:end] * random.randrange(1, 9) + data[end:]


def _insert(random: Random, data: bytes, _corpus: Sequence[bytes]) -> bytes:
    at = random.randrange(len(data) + 1)
    new = random.choice(_INTERESTING) if random.random() < 0.5 else random.randbytes(random.randrange(1, 9))
    return data[:at] + new + data[at:]


def _splice(random: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    other = random.choice(corpus)
    return data[: random.randrange(len(data) + 1)] + other[random.randrange(len(other) + 1) :]


def _lie_about_a_length(random: Random, data: bytes, _corpus: Sequence[bytes]) -> bytes:
    """Puts a large number where a varint or a fixed number may be."""
    at = random.randrange(len(data) + 1)
    number = random.choice(_LENGTHS)
    new = _varint(number) if random.random() < 0.7 else number.to_bytes(8, "big")
    return data[:at] + new + data[at + random.randrange(3) :]


def _change_number(random: Random, data: bytes, _corpus: Sequence[bytes]) -> bytes:
    """Text formats: a digit becomes another number."""
    digits = [index for index, byte in enumerate(data[:4096]) if 0x30 <= byte <= 0x39]
    if not digits:
        return data
    at = random.choice(digits)
    return data[:at] + random.choice((b"0", b"9", b"-1", b"99999999999999999999", b"1e9", b"")) + data[at + 1 :]


def _span(random: Random, data: bytes) -> tuple[int, int]:
    start = random.randrange(len(data) + 1)
    return start, min(len(data), start + random.randrange(65))


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


_MUTATIONS: tuple[Callable[[Random, bytes, Sequence[bytes]], bytes], ...] = (
    _flip_bit,
    _flip_bit,
    _truncate,
    _drop,
    _repeat,
    _insert,
    _splice,
    _lie_about_a_length,
    _change_number,
)
