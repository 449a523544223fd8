"""LogWriter: entries go to the ledger that is open now, or wait in line while there is none.

Order:     What was appended first is written first, whatever happens to ledgers: entries that a failed ledger did not
           confirm are the first to go to the next one, as they were, with their indexes. When entries are confirmed,
           the topic's chain grows and they join the tail cache before `on_appended` is called.
Format:    The broker's header, with time and index, is put before the entry; that is the only copy that is made of it.
           The index is counted up with every entry, and the header carries that of the entry's last message.
Limits:    While a ledger is open, those of its writer; while none is, half of what may wait. Beyond
           `appends_waiting_max` and `append_bytes_waiting_max` an append is refused.
Invariant: At most one ledger has entries in flight: a new one is attached when the old one is closed or has failed.
Read next: ledger_roller.py (where ledgers come from), log.py
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from magnetar.config.topic import TopicConfig
from magnetar.errors import EntryTooLargeError, LedgerClosedError, LogBusyError, MagnetarError
from magnetar.ledger.writing.writer import LedgerWriter
from magnetar.runtime.runtime import Entropy
from magnetar.topic.entry_format.head import EntryStamp
from magnetar.topic.log.managed_ledger import OwnedNode
from magnetar.topic.log.tail_cache import TopicTail
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import EARLIEST, Position
from magnetar.wire.bookkeeper.frames import FRAME_BYTES_MAX, Buffer

ENTRY_BYTES_MAX: Final = FRAME_BYTES_MAX - 256
"""Is less than every digest leaves, so that any ledger takes what is accepted here."""
_position: Final = tuple.__new__  # Half the price of Position(…), for every entry.


class LogListener(Protocol):
    """Appends to a log. It is called on the loop, and never from inside `append`."""

    def on_appended(self, first: Position, tokens: Sequence[Any]) -> None:
        """Reports that consecutive entries of one ledger, one per token, are durable: in order, once per run."""

    def on_append_failed(self, tokens: Sequence[Any], error: MagnetarError) -> None:
        """Reports that these entries were not acknowledged, finally.

        With `error.outcome_unknown` the next owner may find them in the log anyway. `on_fenced` follows, unless the log
        was closed, deleted or terminated.
        """

    def on_room(self) -> None:
        """Reports that `has_room` is true again."""

    def on_fenced(self, error: MagnetarError) -> None:
        """Reports that another owner took over, or that the log has failed: unload the topic. Called once, last."""


class LogWriter:
    """The listener of the open ledger's writer. Used by the log for appending, and by the roller."""

    def __init__(
        self, node: OwnedNode, tail: TopicTail, listener: LogListener, config: TopicConfig, entropy: Entropy
    ) -> None:
        self.next_index = 0
        """The index of the next message."""
        self.watchers: tuple[Callable[[], None], ...] = ()
        """Called once per confirmed run, after `on_appended`."""
        self.on_stored: Callable[[LedgerWriter], None]
        """The roller's: called once per confirmed run of this ledger, last."""
        self.on_ledger_failed: Callable[[LedgerWriter, MagnetarError], None]
        """The roller's: this ledger takes no more, and what it did not confirm is first in line."""
        self._node = node
        self._chain = node.chain
        self._tail = tail
        self._listener = listener
        self._entries_max = config.appends_waiting_max
        self._bytes_max = config.append_bytes_waiting_max
        self._stamp = EntryStamp(entropy.wall_ms)
        self._stamped = self._stamp.on
        self._ledger: LedgerWriter | None = None
        """The ledger that takes entries now."""
        self._confirming: LedgerWriter | None = None
        """The same ledger or, while there is none, the last one: entries that it has not confirmed are in flight."""
        self._waiting: deque[LogEntry] | None = None
        """None until an entry has to wait, which is rare: an empty deque takes 700 bytes."""
        self._waiting_bytes = 0
        self._was_full = False
        self._refusal: tuple[type[MagnetarError], str] | None = None
        self._is_over = False

    def append(self, headers_and_payload: Buffer, messages: int, token: Any) -> None:
        """Copies the buffer, with the broker's header before it, and writes both. The listener gets the token.

        Nothing was appended if it raises: LogBusyError, EntryTooLargeError, TopicTerminatedError, TopicFencedError.
        """
        if self._refusal is not None:
            kind, message = self._refusal  # A new one: an error that is raised again and again keeps every trace.
            raise kind(message)
        if messages < 1:
            messages = 1  # The number is the client's, and the index never goes back.
        index = self.next_index + messages
        data = self._stamped(index - 1, headers_and_payload)
        if len(data) > ENTRY_BYTES_MAX:
            raise _too_large(len(data))
        ledger = self._ledger
        entry = LogEntry(EARLIEST, data, messages, token)
        if ledger is not None and not self._waiting and ledger.has_room:
            ledger.submit(data, entry)
        else:
            self._wait(entry)
        self.next_index = index

    def append_parts(self, parts: Sequence[Buffer], messages: int, token: Any) -> None:
        """Does what `append` does, for an entry whose parts are joined in the one copy that is made."""
        if self._refusal is not None:
            kind, message = self._refusal
            raise kind(message)
        index = self.next_index + messages
        data = self._stamp.on_parts(index - 1, parts)
        if len(data) > ENTRY_BYTES_MAX:
            raise _too_large(len(data))
        ledger = self._ledger
        entry = LogEntry(EARLIEST, data, messages, token)
        if ledger is not None and not self._waiting and ledger.has_room:
            ledger.submit(data, entry)
        else:
            self._wait(entry)
        self.next_index = index

    def _wait(self, entry: LogEntry) -> None:
        if self.waiting >= self._entries_max or self._waiting_bytes + len(entry.data) > self._bytes_max:
            raise LogBusyError(
                f"{self.waiting} entries of {self._waiting_bytes} bytes wait for this topic's ledger: "
                "publish more slowly, or again later"
            )
        self._line().append(entry)
        self._waiting_bytes += len(entry.data)

    @property
    def has_room(self) -> bool:
        """If it is false, the listener's `on_room` will be called."""
        ledger = self._ledger
        if ledger is not None:
            room = not self._waiting and ledger.has_room
        else:
            room = self.waiting * 2 < self._entries_max and self._waiting_bytes * 2 < self._bytes_max
        self._was_full = self._was_full or not room
        return room

    @property
    def is_writing(self) -> bool:
        """Whether a ledger takes entries now."""
        return self._ledger is not None

    @property
    def waiting(self) -> int:
        return len(self._waiting or ())

    def _line(self) -> deque[LogEntry]:
        """The entries that wait, for more of them."""
        if self._waiting is None:
            self._waiting = deque()
        return self._waiting

    def drain(self) -> None:
        """Submits waiting entries, as far as the ledger has room."""
        ledger, waiting = self._ledger, self._waiting
        if ledger is None:
            return
        while waiting and ledger.has_room:
            entry = waiting.popleft()
            self._waiting_bytes -= len(entry.data)
            ledger.submit(entry.data, entry)
        if self._was_full and not waiting and ledger.has_room:
            self._was_full = False
            if not self._is_over:
                self._listener.on_room()

    # --- called by the open ledger's writer ---------------------------------------------------------------------------

    def on_confirmed(self, first_entry_id: int, entries: Sequence[LogEntry]) -> None:
        ledger = self._confirming
        assert ledger is not None
        ledger_id = ledger.ledger_id
        tokens = []
        messages = 0
        for entry_id, entry in enumerate(entries, first_entry_id):
            entry.position = _position(Position, (ledger_id, entry_id))
            tokens.append(entry.token)
            entry.token = None
            messages += entry.known_messages
        self._node.next_index += messages
        self._chain.grow(first_entry_id + len(entries), ledger.length)
        self._tail.add(ledger_id, first_entry_id, entries)
        self._listener.on_appended(entries[0].position, tokens)
        for callback in self.watchers:
            callback()
        self.on_stored(ledger)
        if self._waiting or self._was_full:
            self.drain()

    def on_failed(self, entries: Sequence[LogEntry], error: MagnetarError) -> None:
        self._line().extendleft(reversed(entries))  # More than may wait, for once: they were accepted already.
        self._waiting_bytes += sum(len(entry.data) for entry in entries)
        ledger = self._confirming
        if ledger is None or ledger.failure is not error:  # It is of a new ledger; `attach` will see it.
            return
        self._ledger = None
        if not isinstance(error, LedgerClosedError):  # Otherwise we ended it ourselves.
            self.on_ledger_failed(ledger, error)

    def on_room(self) -> None:
        self.drain()

    # --- called by the roller -----------------------------------------------------------------------------------------

    def attach(self, ledger: LedgerWriter) -> None:
        """From now on this ledger is written. The one before has confirmed or given back all its entries."""
        assert self._ledger is None
        self._confirming = ledger
        if ledger.failure is not None:
            self.on_ledger_failed(ledger, ledger.failure)
            return
        self._ledger = ledger
        self.drain()

    def detach(self) -> None:
        """From now on entries wait."""
        self._ledger = None

    def refuse(self, error: MagnetarError) -> None:
        """From now on appends raise an error like this one. The first one that is given stays."""
        if self._refusal is None:
            self._refusal = (type(error), str(error))

    def end(self, error: MagnetarError) -> None:
        """Refuses appends, and reports no more room: the log is over."""
        self.refuse(error)
        self._is_over = True

    def fail_waiting(self, error: MagnetarError) -> None:
        """Reports that the entries that wait are not appended."""
        waiting, self._waiting, self._waiting_bytes = self._waiting, None, 0
        if waiting:
            self._listener.on_append_failed([entry.token for entry in waiting], error)


def _too_large(size: int) -> EntryTooLargeError:
    return EntryTooLargeError(
        f"an entry of {size} bytes exceeds the {ENTRY_BYTES_MAX} that fit into a ledger; send smaller messages, "
        "smaller batches, or chunks"
    )
