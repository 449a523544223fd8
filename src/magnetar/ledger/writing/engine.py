"""The write engine: sends a window of entries to an ensemble of bookies, and continues while bookies fail.

Entries submitted in one turn of the loop leave together; where every bookie holds every entry (E = Qw), all of them get
the same list of buffers. One call per received run marks the window and confirms what became a prefix. The writer uses
the engine, and recovery uses it to write back what it found.

Failure:   An error answer, a broken connection, no answer for `add_timeout_ms`, or slowness for `slow_bookie_wait_ms`.
           One task at a time repairs: it finds replacements, connects to them, has the change written while the window
           is held, and sends the window's share again. Bookies that fail meanwhile are part of the same change. Without
           a replacement, the failed bookie itself is tried again, for `replacement_wait_ms`; the others continue as
           long as the ack quorum can be reached. Fenced, wrong key, too many changes, too long without an ack: the
           engine fails finally, and every entry in the window with it. Whether a later recovery finds such an entry is
           undecided.
Limits:    A bookie that does not read, falls behind the others by too much, or has too many requests makes the writer
           wait (ensemble_slot.py). A bookie that is lost while nothing is in flight is ignored until the next entry:
           thousands of idle ledgers do not change their metadata because a bookie restarts. It is connected again then,
           and gets what the others got meanwhile, confirmed or not.
Read next: pending_adds.py (which bookie has what), repair.py (replacing), ledger/metadata.py
           (committing)
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
from magnetar.ledger.channels.bookies import Bookies
from magnetar.ledger.channels.channel import Channel
from magnetar.ledger.metadata import EnsembleChange, LedgerKeys, wrong_password
from magnetar.ledger.writing.ensemble_slot import AddBackoff, EnsembleSlot, StallDetector
from magnetar.ledger.writing.pending_adds import PendingAdds
from magnetar.ledger.writing.repair import Repair
from magnetar.quorum.placement import PlacementPolicy
from magnetar.quorum.sizes import QuorumSizes
from magnetar.runtime.runtime import Entropy
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.frames import ENTRY_BYTES_MAX, Buffer, Flag
from magnetar.wire.bookkeeper.hot_path import AddEncoder

log = logging.getLogger(__name__)

Token = TypeVar("Token")
TokenIn = TypeVar("TokenIn", contravariant=True)

_LOOKS_PER_PATIENCE: Final = 4  # How often the clock is looked at within the shortest time that matters.
_LOOK_S_MIN: Final = 0.001
_BUFFERS_MAX: Final = 8
_PAYLOAD_COPIED_MAX: Final = 16 * 1024


class EngineListener(Protocol[TokenIn]):
    """Submits entries. It is called on the loop, and never from inside `submit`."""

    def on_confirmed(self, first_entry_id: int, tokens: Sequence[TokenIn]) -> None:
        """Acknowledges the entries from this one on, one per token: once per received run, in order."""

    def on_failed(self, tokens: Sequence[TokenIn], error: MagnetarError) -> None:
        """Reports the end; the tokens are those of all entries that were not acknowledged. Called at most once."""

    def on_room(self) -> None:
        """Reports that a bookie that had no room has some again. Room by acknowledgement comes with `on_confirmed`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatistics:
    ensemble_changes: int
    bookies_failed: int
    entries_resent: int


class WriteEngine(Generic[Token]):
    """Is made by `open` and ended by `aclose`. Entries are consecutive, from `first_entry_id` on.

    A broker has one for each topic, and a dictionary of its attributes would take more than a kilobyte.
    """

    __slots__ = (
        "_backoff",
        "_behind_max",
        "_bytes_max",
        "_check_interval_s",
        "_entries_max",
        "_failures",
        "_flush_is_due",
        "_flushed",
        "_header",
        "_is_blocked",
        "_listener",
        "_loop",
        "_random",
        "_repair",
        "_resent",
        "_slot_of",
        "_stalls",
        "_timer",
        "bookies",
        "carried_lac",
        "change",
        "config",
        "error",
        "keys",
        "lac",
        "ledger_id",
        "length_at_lac",
        "payload_bytes_max",
        "pending",
        "placement",
        "sizes",
        "slots",
    )

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
        """The LAC that the next entry will carry."""
        self.length_at_lac = length
        self.carried_lac = self.lac
        """The LAC that the last sent entry carried."""
        self.error: MagnetarError | None = None
        patience_s = config.add_timeout_ms / 1000
        self.slots = [EnsembleSlot(position, bookie, patience_s) for position, bookie in enumerate(change.ensemble)]
        self._slot_of: dict[Channel, EnsembleSlot] = {}
        self.payload_bytes_max = ENTRY_BYTES_MAX - keys.digest.overhead_bytes
        self._header = AddEncoder(keys.ledger_id, keys.master_key, keys.digest, flags).header
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._entries_max = config.adds_in_flight_max
        self._bytes_max = config.add_bytes_in_flight_max
        self._behind_max = config.adds_behind_max
        self._flushed = first_entry_id  # The first entry that was not sent yet.
        self._flush_is_due = False
        self._is_blocked = False
        self._stalls = StallDetector(config.add_quorum_timeout_ms / 1000)
        shortest_ms = min(config.add_timeout_ms, config.slow_bookie_wait_ms, config.add_quorum_timeout_ms)
        self._check_interval_s = max(_LOOK_S_MIN, shortest_ms / 1000 / _LOOKS_PER_PATIENCE)
        self._timer: asyncio.TimerHandle | None = None
        self._repair = Repair(self, entropy)
        self._random = entropy.random
        self._backoff = AddBackoff(self.pending, self._random, self._on_pause_over)
        self._failures = 0
        self._resent = 0

    async def open(self) -> None:
        """Connects. A bookie that cannot be reached is replaced with the first entry."""
        await self._repair.connect(self.slots)

    # --- submitting ---------------------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether `submit` may be called: within the limits, and no bookie is too slow."""
        pending = self.pending  # Read for every entry, so without calls.
        return (
            pending.next_entry_id - pending.first_entry_id < self._entries_max
            and pending.length - pending.confirmed_length < self._bytes_max
            and not self._is_blocked
        )

    def check_size(self, payload: Buffer) -> None:
        """Raises EntryTooLargeError, so that such an entry does not wait first."""
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
            for slot in self.slots:
                self.send(slot, frames, end - first)
        else:
            for slot in self.slots:
                share = pending.frames(slot.position, first, end)
                self.send(slot, share, len(share) // 2)
        if self._timer is None:
            self._check_stalls()
        self._repair.begin_if_needed()

    def _joined(self, frames: list[Buffer]) -> list[Buffer]:
        """Joins small buffers once for all bookies: each send of many small ones costs more than the copy."""
        few = len(frames) <= _BUFFERS_MAX
        return frames if few or len(frames[1]) > _PAYLOAD_COPIED_MAX else [b"".join(frames)]

    def send(self, slot: EnsembleSlot, frames: list[Buffer], entries: int) -> None:
        """Sends to the slot's bookie. If the slot is empty, the frames are kept; a failed slot needs none."""
        channel = slot.channel
        if not frames:
            return
        if channel is None or slot.backoff_timer is not None:
            self._add_to_backlog(slot, frames, entries)
            return
        self._hand_over(slot, channel, frames)
        slot.sent += entries
        if slot.slow_since is None and self._is_slow(slot, channel, self._behind_max):
            slot.slow_since = self._loop.time()
            self._is_blocked = True

    def _add_to_backlog(self, slot: EnsembleSlot, frames: list[Buffer], entries: int) -> None:
        if slot.error is None:
            slot.add_to_backlog(frames, entries)
            is_much = (
                slot.backlog_entries - len(self.pending) > self._behind_max or slot.backlog_bytes > self._bytes_max
            )
            if is_much and slot.slow_since is None:
                slot.slow_since = self._loop.time()
                self._is_blocked = True

    def _hand_over(self, slot: EnsembleSlot, channel: Channel, frames: list[Buffer]) -> None:  # noqa: ARG002
        channel.send_adds(frames)

    def _has_room_at(self, channel: Channel) -> bool:
        return channel.is_writable

    def _is_slow(self, slot: EnsembleSlot, channel: Channel, behind_max: int) -> bool:
        """Whether the bookie has no room, or owes answers for many entries that are confirmed without it."""
        return (
            slot.is_refusing
            or not self._has_room_at(channel)
            or slot.sent - slot.answered - len(self.pending) > behind_max
        )

    # --- answers (called by channels) ---------------------------------------------------------------------------------

    def on_add_answers(self, channel: Channel, entry_ids: Sequence[int], codes: Sequence[int]) -> None:
        slot = self._slot_of.get(channel)
        if slot is None:  # Replaced meanwhile: its answers do not count.
            return
        slot.answered += len(entry_ids)
        if any(codes):
            entry_ids = self._stored(slot, entry_ids, codes)
        elif slot.is_on_probation and slot.backoff_timer is None:
            slot.end_probation()
            self._repair.revived(slot.bookie_id)
        self.pending.mark(slot.position, entry_ids)
        self.confirm()
        if self._is_blocked:
            self._check_slowness(slot, channel)

    def _stored(self, slot: EnsembleSlot, entry_ids: Sequence[int], codes: Sequence[int]) -> list[int]:
        """Handles the answers that are not OK, and returns the entries of the others."""
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
            self._backoff.on_refused(slot, [entry_id for entry_id, code in zip(entry_ids, codes, strict=True) if code])
            self._is_blocked = True
            self._check_slot(slot, self._loop.time())
        else:
            slot.cannot_wait = refused is Code.EREADONLY
            self.fail_slot(slot, BookieUnavailableError(f"bookie {slot.bookie_id} answered an add with {refused.name}"))
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
        slot = self._slot_of.pop(channel, None)
        if slot is None:
            return
        if len(self.pending) or slot.backlog:
            self.fail_slot(slot, error)
        else:
            self._leave(slot, None)

    def on_writable(self, channel: Channel) -> None:
        slot = self._slot_of.get(channel)
        if slot is not None:
            self._check_slowness(slot, channel)

    def _check_slowness(self, slot: EnsembleSlot, channel: Channel) -> None:
        if slot.slow_since is not None and not self._is_slow(slot, channel, self._behind_max // 2):
            slot.slow_since = None
            self._unblock()

    def _unblock(self) -> None:
        was_blocked = self._is_blocked
        self._is_blocked = any(slot.slow_since is not None for slot in self.slots)
        if was_blocked and not self._is_blocked and self.error is None:
            self._loop.call_soon(self._report_room)

    def _report_room(self) -> None:
        if self.error is None:
            self._listener.on_room()

    # --- slots --------------------------------------------------------------------------------------------------------

    def connect_slot(self, slot: EnsembleSlot, channel: Channel) -> None:
        """Puts a bookie into the slot and sends it the slot's share. The channel is attached to this engine."""
        slot.connect(channel)
        self._slot_of[channel] = slot
        if channel.is_lost:  # It was lost before this engine listened.
            self.on_channel_lost(channel, BookieUnavailableError(f"the connection to {channel.bookie_id} was lost"))
            return
        if not slot.backlog:  # Otherwise the backlog is all: the slot became empty when nothing was in flight.
            frames = self.pending.frames(slot.position, self.pending.first_entry_id, self._flushed)
            slot.add_to_backlog(frames, len(frames) // 2)
        self._send_backlog(slot)
        self._unblock()
        if self._timer is None:  # The others may have confirmed everything before it came, and stopped the timer.
            self._check_stalls_later()

    def _send_backlog(self, slot: EnsembleSlot) -> None:
        frames, entries = slot.take_backlog()
        self._resent += entries
        self.send(slot, frames, entries)

    def _on_pause_over(self, slot: EnsembleSlot) -> None:
        assert slot.channel is not None, "a slot that is disconnected is in no pause"
        self._send_backlog(slot)
        self._check_slowness(
            slot, slot.channel
        )  # The others may have confirmed all that it refused: then the writer continues.

    def fail_slot(self, slot: EnsembleSlot, error: MagnetarError) -> None:
        if slot.error is not None or self.error is not None:
            return
        log.log(
            logging.DEBUG
            if self._repair.has_failed_before(slot.bookie_id)
            else logging.WARNING,  # A repeated failure was logged before.
            "a bookie of the ensemble failed",
            extra={"ledger_id": self.ledger_id, "bookie_id": slot.bookie_id, "why": str(error)},
        )
        self._failures += 1
        self.bookies.report_failure(slot.bookie_id)
        self._repair.on_failure(slot.bookie_id)
        self._leave(slot, error)
        self._repair.begin_if_needed()

    def _leave(self, slot: EnsembleSlot, error: MagnetarError | None) -> None:
        unanswered = slot.unanswered
        channel = slot.disconnect(error)
        if channel is not None:
            self._slot_of.pop(channel, None)
            channel.detach(self.ledger_id, self, unanswered=unanswered)
        slot.slow_since = None
        self._unblock()

    # --- the clock ----------------------------------------------------------------------------------------------------

    def _check_stalls(self) -> None:
        """Looks at all entries with one timer, which stops when nothing is waited for: no answer, and no room."""
        self._timer = None
        if self.error is not None:
            return
        now = self._loop.time()
        pending = self.pending
        if self._stalls.is_stalled(now, pending.next_entry_id, pending.first_entry_id):
            self.fail(self._timed_out())
            return
        for slot in self.slots:
            if slot.channel is not None:
                self._check_slot(slot, now)
        self._check_stalls_later()

    def _check_stalls_later(self) -> None:
        """Sets the timer if something is waited for."""
        if self.error is None and (len(self.pending) or self._is_blocked or self.unanswered):
            self._timer = self._loop.call_later(self._check_interval_s, self._check_stalls)

    def _check_slot(self, slot: EnsembleSlot, now: float) -> None:
        waited = self.config.add_timeout_ms / 1000
        if slot.stalls.is_stalled(now, slot.sent, slot.answered):
            self.fail_slot(slot, RequestTimeoutError(f"bookie {slot.bookie_id} left adds unanswered for {waited:g} s"))
            return
        since, slow_s = slot.slow_since, self.config.slow_bookie_wait_ms / 1000
        if since is not None and now - since >= slow_s:
            how = "was too slow" if slot.pauses is None else "answered adds with ETOOMANYREQUESTS"
            self.fail_slot(slot, BookieUnavailableError(f"bookie {slot.bookie_id} {how} for {slow_s:g} s"))

    def _timed_out(self) -> AddTimeoutError:
        silent = [slot.bookie_id for slot in self.slots if slot.channel is None or slot.unanswered]
        waited_s = self.config.add_quorum_timeout_ms / 1000
        return AddTimeoutError(
            f"entry {self.pending.first_entry_id} of ledger {self.ledger_id} was not stored by {self.sizes.ack} "
            f"bookies within {waited_s:g} s; waited for {', '.join(silent) or 'an ensemble change'}: close the ledger "
            "and write to another"
        )

    # --- the end ------------------------------------------------------------------------------------------------------

    def fail(self, error: MagnetarError) -> None:
        """Fails everything in the window with this error, and refuses further entries."""
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
        for slot in self.slots:
            self._leave(slot, None)
        tokens = self.pending.drain()
        self._flushed = self.pending.next_entry_id
        return tokens

    async def aclose(self, error: MagnetarError) -> None:
        """Fails what is still in the window with this error. When it returns, nothing of the engine runs any more."""
        self.fail(error)
        await self._repair.aclose()

    @property
    def unanswered(self) -> int:
        """Counts the entries that were confirmed without a bookie that was sent them and may still store them."""
        return max((slot.unanswered for slot in self.slots if slot.channel is not None), default=0)

    def statistics(self) -> EngineStatistics:
        return EngineStatistics(
            ensemble_changes=self._repair.changes, bookies_failed=self._failures, entries_resent=self._resent
        )
