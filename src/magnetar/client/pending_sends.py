"""Entries that a producer has sent, or will when it is attached, and that have no receipt yet; in order. Pure.

Receipts:  come in the order of the entries. One for an entry before the first is late, as its entry was given up or
           answered before; one for an entry behind the first means that a receipt was lost, and is not believed.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from magnetar.errors import MagnetarError


@dataclass(frozen=True, slots=True)
class PendingSend:
    sequence_id: int
    highest_sequence_id: int
    """0 if the entry is a single message."""
    messages: int
    body: bytes
    since: float
    on_done: Callable[[int, int], None]
    """With ledger id and entry id."""
    on_failed: Callable[[MagnetarError], None]


class Receipt(enum.Enum):
    DONE = "done"
    LATE = "late"
    AHEAD = "ahead"


class PendingSends:
    def __init__(self) -> None:
        self._sends: deque[PendingSend] = deque()
        self.messages = 0

    def __len__(self) -> int:
        return len(self._sends)

    def add(self, send: PendingSend) -> None:
        self._sends.append(send)
        self.messages += send.messages

    def on_receipt(self, sequence_id: int, ledger_id: int, entry_id: int) -> Receipt:
        verdict = self._is_first(sequence_id)
        if verdict is Receipt.DONE:
            self._pop().on_done(ledger_id, entry_id)
        return verdict

    def on_refused(self, sequence_id: int, error: MagnetarError) -> Receipt:
        """The broker will never take this one."""
        verdict = self._is_first(sequence_id)
        if verdict is Receipt.DONE:
            self._pop().on_failed(error)
        return verdict

    def fail_all(self, error: MagnetarError) -> None:
        while self._sends:
            self._pop().on_failed(error)

    @property
    def all(self) -> Sequence[PendingSend]:
        return tuple(self._sends)

    @property
    def oldest_since(self) -> float | None:
        return self._sends[0].since if self._sends else None

    def _is_first(self, sequence_id: int) -> Receipt:
        if not self._sends or sequence_id < self._sends[0].sequence_id:
            return Receipt.LATE
        return Receipt.DONE if sequence_id == self._sends[0].sequence_id else Receipt.AHEAD

    def _pop(self) -> PendingSend:
        send = self._sends.popleft()
        self.messages -= send.messages
        return send
