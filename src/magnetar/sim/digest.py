"""Digest: one number that says whether two runs were the same run.

It covers what was chosen at each step (by birth number), every jump of the clock, every chunk that arrived, and what
the world noted.
"""

from __future__ import annotations

import struct
from typing import Final
from zlib import crc32

_TIME = struct.Struct("<d")
_CHOICES_MAX: Final = 4_096


class Digest:
    def __init__(self) -> None:
        self.choices = bytearray()  # A byte each; summed up now and then, since a call per step would cost a tenth.
        self._crc = 0

    @property
    def value(self) -> int:
        self._sum_up()
        return self._crc

    def add(self, data: bytes) -> None:
        self._sum_up()
        self._crc = crc32(data, self._crc)

    def add_time(self, now: float) -> None:
        self.choices += _TIME.pack(now)
        if len(self.choices) > _CHOICES_MAX:
            self._sum_up()

    def _sum_up(self) -> None:
        self._crc = crc32(self.choices, self._crc)
        self.choices.clear()
