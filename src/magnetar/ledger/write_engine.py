"""The write engine: sends a window of entries to an ensemble of bookies, and keeps doing so while bookies fail.

Sending:   entries submitted in one turn of the loop leave together; where every bookie holds every entry (E = Qw) all
           of them get the same list of buffers.
Answers:   one call per received run marks the window and confirms what became a prefix.
Slow:      a bookie that does not read, or that others are far ahead of, or that has too many requests (overload.py),
           makes the writer wait: it owes no more.
Failure:   an error answer, a broken connection, no answer for `add_timeout_ms`, slow for `slow_bookie_wait_ms`. One
           task at a time repairs: it finds replacements, connects to them, has the change written while the window is
           held, and sends the window's share again. Who fails in the meantime is part of the same change.
Nobody:    if there is no replacement, the failed bookie itself is tried again, for `replacement_wait_ms`. Meanwhile
           the others go on, as long as the ack quorum can be reached.
End:       fenced, wrong key, too many changes, too long without an ack: the engine fails once and for all, and every
           entry in the window with it. Whether a later recovery finds such an entry, nobody knows.
Idle:      a bookie that goes away while nothing is in flight is nobody's problem until the next entry: thousands of
           idle ledgers do not change their metadata because a bookie restarts. It is connected again then, and gets
           what the others got meanwhile, confirmed or not.
Used by:   writer.py, and recovery.py to write back what it found.
Read next: pending_adds.py (who has what), repair.py (replacing), ensemble_change.py (making it true)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from magnetar.config.ledger import LedgerConfig
from magnetar.errors import (
    AddTimeoutError,
    BookieUnavailableError,
    EntryTooLargeError,
    LedgerFencedError,
    MagnetarError,
    RequestTimeoutError,
)
from magnetar.ledger.bookies import Bookies
from magnetar.ledger.channel import Channel
from magnetar.ledger.ensemble_change import EnsembleChange
from magnetar.ledger.keys import LedgerKeys, wrong_password
from magnetar.ledger.overdue import Overdue
from magnetar.ledger.overload import Overload
from magnetar.ledger.pending_adds import PendingAdds
from magnetar.ledger.repair import Repair
from magnetar.ledger.seats import Seat
from magnetar.quorum.placement import PlacementPolicy
from magnetar.quorum.sizes import QuorumSizes
from magnetar.runtime.entropy import Entropy
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.frames import ENTRY_BYTES_MAX, Buffer
from magnetar.wire.bookkeeper.hot_path import AddEncoder
from magnetar.wire.bookkeeper.packet import Flag

log = logging.getLogger(__name__)

Token = TypeVar("Token")
TokenIn = TypeVar("TokenIn", contravariant=True)

_LOOKS_PER_PATIENCE: Final = 4  # How often the clock is looked at within the shortest time that matters.
_LOOK_S_MIN: Final = 0.001
_BUFFERS_MAX: Final = 8
_PAYLOAD_COPIED_MAX: Final = 16 * 1024


class EngineListener(Protocol[TokenIn]):
    """Whoever submits entries. Called on the loop, and never from inside `submit`."""

    def on_confirmed(self, first_entry_id: int, tokens: Sequence[TokenIn]) -> None:
        """The entries from this one on, one per token, are confirmed: once per received run, in order."""

    def on_failed(self, tokens: Sequence[TokenIn], error: MagnetarError) -> None:
        """The engine is finished. The tokens are those of all entries in the window. Called at most once."""

    def on_room(self) -> None:
        """A bookie that had no room has some again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatistics:
    ensemble_changes: int
    bookies_failed: int
    entries_resent: int


class WriteEngine(Generic[Token]):
    """Made by `open`, ended by `aclose`. Entries are consecutive, from `first_entry_id` on."""

    def __init__(
        self,
        keys: LedgerKeys,
        change: EnsembleChange,
        bookies: Bookies,
        placement: PlacementPolicy,
        config: LedgerConfig,
        entropy: Entropy,
        listener: EngineListener[Token],
        *,
        first_entry_id: int = 0,
        length: int = 0,
        flags: int = Flag.NONE,
    ) -> None:
        """`length` is that of all payloads before the first entry."""
        metadata = change.metadata
        self.ledger_id = keys.ledger_id
        self.keys = keys
        self.sizes = QuorumSizes(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)
        self.change = change
        self.bookies = bookies
        self.placement = placement
        self.config = config
        self.pending: PendingAdds[Token] = PendingAdds(self.sizes, first_entry_id, length)
        self.lac = first_entry_id - 1
        """What the next entry will carry."""
        self.length_at_lac = length
        self.carried_lac = self.lac
        """What the last entry that was sent carried."""
        self.error: MagnetarError | None = None
        patience_s = config.add_timeout_ms / 1000
        self.seats = [Seat(position, bookie, patience_s) for position, bookie in enumerate(change.ensemble)]
        self._seat_of: dict[Channel, Seat] = {}
        self.payload_bytes_max = ENTRY_BYTES_MAX - keys.digest.overhead_bytes
        self._header = AddEncoder(keys.ledger_id, keys.master_key, keys.digest, flags).header
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._entries_max = config.adds_in_flight_max
        self._bytes_max = config.add_bytes_in_flight_max
        self._behind_max = config.adds_behind_max
        self._flushed = first_entry_id  # The first entry that was not sent to anybody yet.
        self._flush_is_due = False
        self._is_blocked = False
        self._overdue = Overdue(config.add_quorum_timeout_ms / 1000)
        shortest_ms = min(config.add_timeout_ms, config.slow_bookie_wait_ms, config.add_quorum_timeout_ms)
        self._look_s = max(_LOOK_S_MIN, shortest_ms / 1000 / _LOOKS_PER_PATIENCE)
        self._timer: asyncio.TimerHandle | None = None
        self._repair = Repair(self, entropy)
        self._random = entropy.random
        self._overload = Overload(self.pending, self._random, self._on_rested)
        self._failures = 0
        self._resent = 0

    async def open(self) -> None:
        """Connects. A bookie that cannot be reached is replaced with the first entry."""
        await self._repair.connect(self.seats)

    # --- submitting ---------------------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether `submit` may be called: within the limits, and no bookie is too slow."""
        pending = self.pending  # Asked for every entry: so without calls.
        return (
            pending.next_entry_id - pending.first_entry_id < self._entries_max
            and pending.length - pending.confirmed_length < self._bytes_max
            and not self._is_blocked
        )

    def check_size(self, payload: Buffer) -> None:
        """EntryTooLargeError: for an entry that waits, before it does."""
        if len(payload) > self.payload_bytes_max:
            raise EntryTooLargeError(
                f"an entry of {len(payload)} bytes exceeds the {self.payload_bytes_max} that fit into one request; "
                "make smaller entries"
            )

    def submit(self, payload: Buffer, token: Token) -> int:
        """Sends the payload, which must not change any more, in this turn of the loop; returns its entry id."""
        pending = self.pending
        entry_id = pending.next_entry_id
        assert entry_id - pending.first_entry_id < self._entries_max, "submitted beyond the limits: ask has_room first"
        if len(payload) > self.payload_bytes_max:
            self.check_size(payload)
        header = self._header(entry_id, self.lac, pending.length + len(payload), payload)
        pending.append(header, payload, token)
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)
        return entry_id

    def _flush(self) -> None:
        self._flush_is_due = False
        pending = self.pending
        first, end = self._flushed, pending.next_entry_id
        if first == end or self.error is not None:
            return
        self._flushed = end
        self.carried_lac = self.lac
        if self.sizes.ensemble == self.sizes.write:
            frames = self._joined(pending.frames(0, first, end))
            for seat in self.seats:
                self.send(seat, frames, end - first)
        else:
            for seat in self.seats:
                share = pending.frames(seat.position, first, end)
                self.send(seat, share, len(share) // 2)
        if self._timer is None:
            self._look()
        self._repair.begin_if_needed()

    def _joined(self, frames: list[Buffer]) -> list[Buffer]:
        """Once for all bookies: many small buffers cost more to send, each time, than to copy. Large ones do not."""
        few = len(frames) <= _BUFFERS_MAX
        return frames if few or len(frames[1]) > _PAYLOAD_COPIED_MAX else [b"".join(frames)]

    def send(self, seat: Seat, frames: list[Buffer], entries: int) -> None:
        """To whoever sits there; whoever sits down on an empty or failed seat later gets its share then."""
        channel = seat.channel
        if not frames:
            return
        if channel is None or seat.rest is not None:
            self._owe(seat, frames, entries)
            return
        self._hand_over(seat, channel, frames)
        seat.sent += entries
        if seat.slow_since is None and self._is_slow(seat, channel, self._behind_max):
            seat.slow_since = self._loop.time()
            self._is_blocked = True

    def _owe(self, seat: Seat, frames: list[Buffer], entries: int) -> None:
        if seat.error is None:
            seat.owe(frames, entries)
            is_much = seat.owed_entries - len(self.pending) > self._behind_max or seat.owed_bytes > self._bytes_max
            if is_much and seat.slow_since is None:
                seat.slow_since = self._loop.time()
                self._is_blocked = True

    def _hand_over(self, seat: Seat, channel: Channel, frames: list[Buffer]) -> None:  # noqa: ARG002
        channel.send_adds(frames)

    def _has_room_at(self, channel: Channel) -> bool:
        return channel.is_writable

    def _is_slow(self, seat: Seat, channel: Channel, behind_max: int) -> bool:
        """It has room for no more, or owes answers for many entries that are confirmed without it."""
        return (
            seat.is_refusing
            or not self._has_room_at(channel)
            or seat.sent - seat.answered - len(self.pending) > behind_max
        )

    # --- answers (called by channels) ---------------------------------------------------------------------------------

    def on_add_answers(self, channel: Channel, entry_ids: Sequence[int], codes: Sequence[int]) -> None:
        seat = self._seat_of.get(channel)
        if seat is None:  # Replaced meanwhile: what it has does not count.
            return
        seat.answered += len(entry_ids)
        if any(codes):
            entry_ids = self._stored(seat, entry_ids, codes)
        elif seat.is_on_trial and seat.rest is None:
            seat.pass_trial()
            self._repair.revived(seat.bookie_id)
        self.pending.mark(seat.position, entry_ids)
        self.confirm()
        if self._is_blocked:
            self._look_whether_slow(seat, channel)

    def _stored(self, seat: Seat, entry_ids: Sequence[int], codes: Sequence[int]) -> list[int]:
        """Deals with the answers that are not OK, and returns the entries of the others."""
        refused = Code(next(code for code in codes if code))
        if Code.EFENCED in codes:
            self.fail(
                LedgerFencedError(
                    f"ledger {self.ledger_id} was fenced: another client took it over; this writer is finished"
                )
            )
        elif Code.EUA in codes:
            self.fail(wrong_password(self.ledger_id))
        elif all(code in (Code.EOK, Code.ETOOMANYREQUESTS) for code in codes):
            self._overload.on_refused(seat, [entry_id for entry_id, code in zip(entry_ids, codes, strict=True) if code])
            self._is_blocked = True
            self._look_at(seat, self._loop.time())
        else:
            seat.cannot_wait = refused is Code.EREADONLY
            self.fail_seat(seat, BookieUnavailableError(f"bookie {seat.bookie_id} answered an add with {refused.name}"))
        return [entry_id for entry_id, code in zip(entry_ids, codes, strict=True) if not code]

    def confirm(self) -> None:
        pending = self.pending
        first = pending.first_entry_id
        tokens = pending.take_confirmed()
        if tokens:
            self._advance_lac()
            self._listener.on_confirmed(first, tokens)

    def _advance_lac(self) -> None:
        self.lac = self.pending.first_entry_id - 1
        self.length_at_lac = self.pending.confirmed_length

    def on_channel_lost(self, channel: Channel, error: MagnetarError) -> None:
        seat = self._seat_of.pop(channel, None)
        if seat is None:
            return
        if len(self.pending) or seat.owed:
            self.fail_seat(seat, error)
        else:
            self._leave(seat, None)

    def on_writable(self, channel: Channel) -> None:
        seat = self._seat_of.get(channel)
        if seat is not None:
            self._look_whether_slow(seat, channel)

    def _look_whether_slow(self, seat: Seat, channel: Channel) -> None:
        if seat.slow_since is not None and not self._is_slow(seat, channel, self._behind_max // 2):
            seat.slow_since = None
            self._unblock()

    def _unblock(self) -> None:
        was_blocked = self._is_blocked
        self._is_blocked = any(seat.slow_since is not None for seat in self.seats)
        if was_blocked and not self._is_blocked and self.error is None:
            self._loop.call_soon(self._tell_room)

    def _tell_room(self) -> None:
        if self.error is None:
            self._listener.on_room()

    # --- seats --------------------------------------------------------------------------------------------------------

    def seat(self, seat: Seat, channel: Channel) -> None:
        """Somebody sits down and gets the seat's share of the window. The channel is attached to this engine."""
        seat.sit_down(channel)
        self._seat_of[channel] = seat
        if channel.is_lost:  # It was told before we listened.
            self.on_channel_lost(channel, BookieUnavailableError(f"the connection to {channel.bookie_id} was lost"))
            return
        if not seat.owed:  # Else that is all there is: the seat became empty when nothing was in flight.
            frames = self.pending.frames(seat.position, self.pending.first_entry_id, self._flushed)
            seat.owe(frames, len(frames) // 2)
        self._send_owed(seat)
        self._unblock()
        if self._timer is None:  # Others may have confirmed everything before it came: then nobody looks any more.
            self._look_later()

    def _send_owed(self, seat: Seat) -> None:
        frames, entries = seat.take_owed()
        self._resent += entries
        self.send(seat, frames, entries)

    def _on_rested(self, seat: Seat) -> None:
        assert seat.channel is not None, "who stands up does not rest"
        self._send_owed(seat)
        self._look_whether_slow(seat, seat.channel)  # Others may have confirmed all that it refused: then go on.

    def fail_seat(self, seat: Seat, error: MagnetarError) -> None:
        if seat.error is not None or self.error is not None:
            return
        log.log(
            logging.DEBUG if self._repair.has_failed_before(seat.bookie_id) else logging.WARNING,  # Then it was said.
            "a bookie of the ensemble failed",
            extra={"ledger_id": self.ledger_id, "bookie_id": seat.bookie_id, "why": str(error)},
        )
        self._failures += 1
        self.bookies.report_failure(seat.bookie_id)
        self._repair.on_failure(seat.bookie_id)
        self._leave(seat, error)
        self._repair.begin_if_needed()

    def _leave(self, seat: Seat, error: MagnetarError | None) -> None:
        unanswered = seat.unanswered
        channel = seat.stand_up(error)
        if channel is not None:
            self._seat_of.pop(channel, None)
            channel.detach(self.ledger_id, self, unanswered=unanswered)
        seat.slow_since = None
        self._unblock()

    # --- the clock ----------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """One timer for all entries; it stops when nothing is waited for: no answer, and no room."""
        self._timer = None
        if self.error is not None:
            return
        now = self._loop.time()
        pending = self.pending
        if self._overdue.look(now, pending.next_entry_id, pending.first_entry_id):
            self.fail(self._timed_out())
            return
        for seat in self.seats:
            if seat.channel is not None:
                self._look_at(seat, now)
        self._look_later()

    def _look_later(self) -> None:
        """If something is waited for."""
        if self.error is None and (len(self.pending) or self._is_blocked or self.unanswered):
            self._timer = self._loop.call_later(self._look_s, self._look)

    def _look_at(self, seat: Seat, now: float) -> None:
        waited = self.config.add_timeout_ms / 1000
        if seat.overdue.look(now, seat.sent, seat.answered):
            self.fail_seat(seat, RequestTimeoutError(f"bookie {seat.bookie_id} left adds unanswered for {waited:g} s"))
            return
        since, slow_s = seat.slow_since, self.config.slow_bookie_wait_ms / 1000
        if since is not None and now - since >= slow_s:
            how = "was too slow" if seat.refusals is None else "answered adds with ETOOMANYREQUESTS"
            self.fail_seat(seat, BookieUnavailableError(f"bookie {seat.bookie_id} {how} for {slow_s:g} s"))

    def _timed_out(self) -> AddTimeoutError:
        silent = [seat.bookie_id for seat in self.seats if seat.channel is None or seat.unanswered]
        waited_s = self.config.add_quorum_timeout_ms / 1000
        return AddTimeoutError(
            f"entry {self.pending.first_entry_id} of ledger {self.ledger_id} was not stored by {self.sizes.ack} "
            f"bookies within {waited_s:g} s; waited for {', '.join(silent) or 'an ensemble change'}: close the ledger "
            "and write to another"
        )

    # --- the end ------------------------------------------------------------------------------------------------------

    def fail(self, error: MagnetarError) -> None:
        """Everything in the window fails with this error, and nothing more is taken."""
        if self.error is not None:
            return
        tokens = self._stop(error)
        error.outcome_unknown = True
        self._listener.on_failed(tokens, error)

    def _stop(self, error: MagnetarError) -> list[Token]:
        self.error = error
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._repair.cancel()
        for seat in self.seats:
            self._leave(seat, None)
        tokens = self.pending.drain()
        self._flushed = self.pending.next_entry_id
        return tokens

    async def aclose(self, error: MagnetarError) -> None:
        """What is still in the window fails with this error; nothing of the engine runs any more when it returns."""
        self.fail(error)
        await self._repair.aclose()

    @property
    def unanswered(self) -> int:
        """Entries that were confirmed without somebody who was sent them too and may yet store them."""
        return max((seat.unanswered for seat in self.seats if seat.channel is not None), default=0)

    def statistics(self) -> EngineStatistics:
        return EngineStatistics(
            ensemble_changes=self._repair.changes,
            bookies_failed=self._failures,
            entries_resent=self._resent,
        )
