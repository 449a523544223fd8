"""The appending side of a topic's log: entries go to the ledger that is written now, or wait while there is none.

Order:     what was appended first is written first, whatever happens to ledgers: entries that a failed ledger did not
           acknowledge are the first to go to the next one, as they were, with their indexes.
Index:     counted up with every entry; the broker's header of an entry carries that of its last message.
Room:      while a ledger is there, its writer's limits count; while there is none, half of what may wait. Beyond
           `appends_waiting_max` and `append_bytes_waiting_max` an append is refused.
Not here:  where ledgers come from (switching.py), what becomes of confirmed entries (ledger_keeper.py, log.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Protocol

from magnetar.config.topic import TopicConfig
from magnetar.errors import EntryTooLargeError, LedgerClosedError, LogBusyError, MagnetarError
from magnetar.ledger.writer import LedgerWriter
from magnetar.runtime.entropy import Entropy
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import EARLIEST
from magnetar.wire.bookkeeper.frames import FRAME_BYTES_MAX, Buffer
from magnetar.wire.pulsar.entry import broker_entry_header
from magnetar.wire.pulsar.varints import varint

ENTRY_BYTES_MAX: Final = FRAME_BYTES_MAX - 256
"""Less than the room that every digest leaves, so that what is taken here is taken by any ledger."""
_VARINT_BYTES: Final = 10  # Of the longest.


class AppendEvents(Protocol):
    """The log around it."""

    def on_run(self, ledger: LedgerWriter, first_entry_id: int, entries: Sequence[LogEntry]) -> None:
        """Confirmed: consecutive, in order."""

    def on_room(self) -> None:
        """`has_room` was false and is true again."""

    def on_ledger_failed(self, ledger: LedgerWriter, error: MagnetarError) -> None:
        """The ledger takes no more; what it did not acknowledge is first in line. Called once per ledger."""


class LedgerEvents:
    """Listens to one ledger's writer."""

    def __init__(self, appender: Appender) -> None:
        self._appender = appender
        self.writer: LedgerWriter | None = None
        """Known once the ledger is made, and before anything is submitted."""

    def on_confirmed(self, first_entry_id: int, tokens: Sequence[LogEntry]) -> None:
        assert self.writer is not None
        self._appender.on_confirmed(self.writer, first_entry_id, tokens)

    def on_failed(self, tokens: Sequence[LogEntry], error: MagnetarError) -> None:
        assert self.writer is not None
        self._appender.on_failed(self.writer, tokens, error)

    def on_room(self) -> None:
        self._appender.drain()


class Appender:
    def __init__(self, config: TopicConfig, entropy: Entropy, next_index: int, events: AppendEvents) -> None:
        self.next_index = next_index
        """Of the next message."""
        self._entries_max = config.appends_waiting_max
        self._bytes_max = config.append_bytes_waiting_max
        self._wall_ms = entropy.wall_ms
        self._stamped_ms = -1
        self._stamps: list[bytes] = []
        self._events = events
        self._ledger: LedgerWriter | None = None
        self._waiting: deque[LogEntry] = deque()
        self._waiting_bytes = 0
        self._was_full = False
        self._refusal: tuple[type[MagnetarError], str] | None = None

    # --- appending ----------------------------------------------------------------------------------------------------

    def append(self, headers_and_payload: Buffer, messages: int, token: Any) -> None:
        if self._refusal is not None:
            kind, message = self._refusal  # Made anew: an error that is raised again and again keeps every trace.
            raise kind(message)
        if messages < 1:
            messages = 1  # A client says how many there are, and the index never goes back.
        index = self.next_index + messages
        number = varint(index - 1)
        now_ms = self._wall_ms()
        if now_ms != self._stamped_ms:
            self._stamp(now_ms)
        data = b"".join((self._stamps[len(number)], number, headers_and_payload))
        if len(data) > ENTRY_BYTES_MAX:
            raise _too_large(len(data))
        ledger = self._ledger
        entry = LogEntry(EARLIEST, data, messages, token)
        if ledger is not None and not self._waiting and ledger.has_room:
            ledger.submit(data, entry)
        else:
            self._wait(entry)
        self.next_index = index

    def _stamp(self, now_ms: int) -> None:
        """The broker's headers of this millisecond: all but the index, for every length that an index has."""
        self._stamped_ms = now_ms
        header = broker_entry_header(0, now_ms)
        head, stamp = header[:2], header[6:-1]
        self._stamps = [head + (len(stamp) + length).to_bytes(4, "big") + stamp for length in range(_VARINT_BYTES + 1)]

    def _wait(self, entry: LogEntry) -> None:
        if len(self._waiting) >= self._entries_max or self._waiting_bytes + len(entry.data) > self._bytes_max:
            raise LogBusyError(
                f"{len(self._waiting)} entries of {self._waiting_bytes} bytes wait for this topic's ledger: "
                "publish more slowly, or again later"
            )
        self._waiting.append(entry)
        self._waiting_bytes += len(entry.data)

    @property
    def has_room(self) -> bool:
        """If it is false, `on_room` will be heard."""
        ledger = self._ledger
        if ledger is not None:
            room = not self._waiting and ledger.has_room
        else:
            room = len(self._waiting) * 2 < self._entries_max and self._waiting_bytes * 2 < self._bytes_max
        self._was_full = self._was_full or not room
        return room

    @property
    def is_writing(self) -> bool:
        """Whether there is a ledger that takes entries."""
        return self._ledger is not None

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def drain(self) -> None:
        """Lets those who wait go on, as far as there is room."""
        ledger, waiting = self._ledger, self._waiting
        if ledger is None:
            return
        while waiting and ledger.has_room:
            entry = waiting.popleft()
            self._waiting_bytes -= len(entry.data)
            ledger.submit(entry.data, entry)
        if self._was_full and not waiting and ledger.has_room:
            self._was_full = False
            self._events.on_room()

    # --- what a ledger's writer says ----------------------------------------------------------------------------------

    def on_confirmed(self, ledger: LedgerWriter, first_entry_id: int, entries: Sequence[LogEntry]) -> None:
        self._events.on_run(ledger, first_entry_id, entries)
        if self._waiting or self._was_full:
            self.drain()

    def on_failed(self, ledger: LedgerWriter, entries: Sequence[LogEntry], error: MagnetarError) -> None:
        self._waiting.extendleft(reversed(entries))  # More than may wait, for once: they were taken already.
        self._waiting_bytes += sum(len(entry.data) for entry in entries)
        if ledger is self._ledger:
            self._ledger = None
        if not isinstance(error, LedgerClosedError):  # Else we ended it ourselves.
            self._events.on_ledger_failed(ledger, error)

    # --- ledgers come and go ------------------------------------------------------------------------------------------

    def attach(self, ledger: LedgerWriter) -> None:
        """From now on this one is written."""
        assert self._ledger is None
        self._ledger = ledger
        self.drain()

    def detach(self) -> None:
        """From now on entries wait."""
        self._ledger = None

    def refuse(self, error: MagnetarError) -> None:
        """From now on appends raise an error like this one. The first that is given stays."""
        if self._refusal is None:
            self._refusal = (type(error), str(error))

    def take_waiting(self) -> list[LogEntry]:
        """Those who wait, to be told that they wait in vain."""
        waiting, self._waiting, self._waiting_bytes = list(self._waiting), deque(), 0
        return waiting


def _too_large(size: int) -> EntryTooLargeError:
    return EntryTooLargeError(
        f"an entry of {size} bytes exceeds the {ENTRY_BYTES_MAX} that fit into a ledger; send smaller messages, "
        "smaller batches, or chunks"
    )
