"""Receiving: one buffer that all connections of a process read into, and a bound for what they keep of it.

    memory = ReceiveMemory(256 * 1024, bytes_max=128 * 2**20, frame_timeout_s=30, frame_end=frame_end)
    received = Received(memory, connection)        one for each connection
    received.room(), received.add(size)            before and after a read
    received.data, received.start, received.end    the unhandled bytes; the owner moves `start`
    received.settle()                              after everything that can be handled was handled

Order:     connections read into the shared buffer, because a read is handled before the next one begins. So an idle
           connection has no buffer at all. The rest of an unfinished frame is kept by its connection, as a copy of
           just that size. A frame that is larger than the shared buffer is received into a buffer of its
           connection, which grows as the frame arrives: a length that was only announced costs nothing. The
           connection keeps that buffer for a moment, because more large frames may follow.
Limits:    `bytes_max` for all that connections keep, capacity and not content. From three quarters of it on, one
           read brings `SMALL_BYTES` at most. At the bound, a connection that keeps more than that, and whose frame
           needs still more, is held; only the oldest of them continues. So the bound is exceeded by one frame, by
           one read, and by `SMALL_BYTES` for each connection.
Failure:   small frames never wait. The oldest of the large ones is not held for lack of memory: it finishes, or it
           is closed after `frame_timeout_s` without a byte. When memory is short, after `frame_timeout_s` since the
           frame began: a client that sends byte by byte cannot keep the others waiting. Time does not count while
           the process itself holds the connection.
Read next: framed_connection.py
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final, Protocol

from magnetar.errors import RemoteProtocolError

SMALL_BYTES: Final = 16 * 1024  # What each connection may keep, independent of the others: most frames are smaller.
HOLD: Final = "receive memory"  # The reason of holds for lack of memory.
_TICK_S: Final = 1.0  # How often frames are looked at, and how long a large buffer that is not used is kept.
_NOTHING: Final = bytearray()
_NOWHERE: Final = -1

FrameEnd = Callable[[bytearray, int, int], int | None]
"""Returns the end of the frame at `start` of a region, which may be beyond the region; None if it is not known yet."""


class Receiver(Protocol):
    """A connection, as its memory sees it."""

    @property
    def is_held(self) -> bool: ...
    @property
    def is_excused(self) -> bool:
        """Whether the process itself holds the connection, and not a client that does not read its answers."""
        ...

    def hold(self, reason: str) -> None: ...
    def release(self, reason: str) -> None: ...
    def give_up(self, why: str) -> None:
        """Closes the connection at once."""
        ...


class ReceiveMemory:
    """Shared by all connections of one loop. Ended by `close`."""

    def __init__(self, receive_bytes: int, *, bytes_max: int, frame_timeout_s: float, frame_end: FrameEnd) -> None:
        self.shared = bytearray(receive_bytes)
        self.view = memoryview(self.shared)
        self.frame_end = frame_end
        self.kept_bytes = 0
        self.held = 0
        """How often a connection was held for lack of memory."""
        self.timed_out = 0
        """Connections that were closed because a frame did not arrive completely."""
        self.tick = 0
        self.bytes_max = bytes_max
        self._tight_bytes = bytes_max * 3 // 4
        self._tick_s = min(_TICK_S, frame_timeout_s / 4)
        self._ticks_max = math.ceil(frame_timeout_s / self._tick_s)
        self._timeout_s = frame_timeout_s
        self._unfinished: dict[Received, None] = {}  # In the order in which their frames began.
        self._large: dict[Received, None] = {}  # Those that keep `SMALL_BYTES` or more; the oldest first.
        self._waiting: dict[Received, None] = {}
        self._spare: dict[Received, None] = {}  # Connections with a large buffer that is empty.
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_tight(self) -> bool:
        return self.kept_bytes >= self._tight_bytes

    @property
    def unfinished(self) -> int:
        """Connections that have received bytes which they could not handle yet."""
        return len(self._unfinished)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def may_take(self, received: Received, more_bytes: int) -> bool:
        """Reports whether this connection may keep that much more: there is room, or it is the oldest of the large
        ones."""
        if self.kept_bytes + more_bytes <= self.bytes_max:
            return True
        return not self._large or next(iter(self._large)) is received

    def count(self, difference: int) -> None:
        self.kept_bytes += difference
        if difference < 0 and self._waiting:
            self._admit()

    def begin(self, received: Received) -> None:
        """Notes that a frame is unfinished, and is not the one that was unfinished before."""
        self._spare.pop(received, None)
        self._large.pop(received, None)
        self._unfinished.pop(received, None)
        self._unfinished[received] = None
        self._look_later()
        if self._waiting:
            self._admit()

    def note_large(self, received: Received) -> None:
        self._large[received] = None  # If it is in the dict already, its place does not change.

    def finish(self, received: Received) -> None:
        self._unfinished.pop(received, None)
        self._large.pop(received, None)
        self._spare.pop(received, None)
        if received in self._waiting:
            del self._waiting[received]
            received.owner.release(HOLD)
        if self._waiting:
            self._admit()

    def make_wait(self, received: Received) -> None:
        if received not in self._waiting:
            self._waiting[received] = None
            self.held += 1
            received.owner.hold(HOLD)

    def keep_spare(self, received: Received) -> None:
        self._spare[received] = None
        self._look_later()

    def _admit(self) -> None:
        """Releases the oldest, or all if there is room."""
        if self.kept_bytes < self._tight_bytes:
            admitted = list(self._waiting)
        else:
            oldest = next(iter(self._large), None)
            admitted = [oldest] if oldest is not None and oldest in self._waiting else []
        for received in admitted:
            del self._waiting[received]
            received.owner.release(HOLD)

    def _look_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._tick_s, self._look)

    def _look(self) -> None:
        self._timer = None
        self.tick += 1
        for received in list(self._unfinished):
            self._check_timeout(received)
        for received in [spare for spare in self._spare if spare.heard < self.tick - 1]:
            received.forget()
        if self._unfinished or self._spare:
            self._look_later()

    def _check_timeout(self, received: Received) -> None:
        owner = received.owner
        if owner.is_excused or (owner.is_held and not self.is_tight):
            received.begun += 1
            received.heard += 1
            return
        if self.tick - (received.begun if self.is_tight else received.heard) > self._ticks_max:
            self.timed_out += 1
            owner.give_up(f"a frame did not arrive completely within {self._timeout_s:g} s")
            received.forget()

    def close(self) -> None:
        """Ends the memory; no connection is left."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Received:
    """What one connection has received and not handled yet."""

    __slots__ = ("_goes_to_shared", "_kept_bytes", "_memory", "_settled_at", "begun", "data", "end", "heard", "owner",
                 "start")  # fmt: skip

    def __init__(self, memory: ReceiveMemory, owner: Receiver) -> None:
        self.owner = owner
        self.data = _NOTHING
        self.start = 0  # Unhandled bytes are from here …
        self.end = 0  # … to here.
        self.begun = 0  # The tick at which the unfinished frame began, and …
        self.heard = 0  # … that of its last byte.
        self._memory = memory
        self._kept_bytes = 0
        self._settled_at = _NOWHERE  # The place of the rest when it was kept: if that moves, it is another frame's.
        self._goes_to_shared = True

    def room(self) -> memoryview:
        """Returns the room for the next read; never empty. The caller may not use it: nothing is given up before the
        read."""
        memory, rest = self._memory, self.end - self.start
        if not self._is_large and rest <= len(memory.shared) // 2:
            if rest:
                memory.shared[:rest] = memoryview(self.data)[self.start : self.end]
            self._goes_to_shared = True
            if not memory.is_tight:
                return memory.view[rest:]
            return memory.view[rest : SMALL_BYTES if rest < SMALL_BYTES else rest + SMALL_BYTES]
        self._goes_to_shared = False
        if self.end == len(self.data):  # A transport that was asked to stop had one more read in progress.
            self._move(rest + SMALL_BYTES)
        return memoryview(self.data)[self.end :]

    def add(self, size: int) -> None:
        """Counts bytes that were read into the room."""
        if self._goes_to_shared:
            if self._settled_at != self.start:
                self._settled_at = _NOWHERE
            elif self.start:
                self._settled_at = 0
            self.end += size - self.start
            self.start = 0
            self.data = self._memory.shared
        else:
            self.end += size

    def settle(self) -> None:
        """Keeps the rest, as long as it is needed, after everything that can be handled now was handled."""
        if self.start < self.end:
            self._keep_rest()
            return
        self.start = self.end = 0
        self._settled_at = _NOWHERE
        if not self._kept_bytes:
            self.data = _NOTHING
            return
        if self._is_large and not self._memory.is_tight:
            self._memory.finish(self)
            self._memory.keep_spare(self)
            self.heard = self._memory.tick
        else:
            self.forget()

    def forget(self) -> None:
        """Drops everything; also called when the connection is closed."""
        self.data = _NOTHING
        self.start = self.end = 0
        self._settled_at = _NOWHERE
        self._count()
        self._memory.finish(self)

    @property
    def _is_large(self) -> bool:
        return len(self.data) > len(self._memory.shared)

    def _keep_rest(self) -> None:
        memory = self._memory
        is_another = self.start != self._settled_at
        is_large = self.end - self.start >= SMALL_BYTES
        if is_another:
            self.begun = memory.tick
            memory.begin(self)
        if is_large:
            memory.note_large(self)
        has_room = self._make_room(is_another)
        self._count()
        self._settled_at = self.start
        self.heard = memory.tick
        if is_large and not self.owner.is_held and not (has_room and memory.may_take(self, 0)):
            memory.make_wait(self)

    def _make_room(self, is_another: bool) -> bool:
        """Moves the rest out of the shared buffer, into a larger one if it needs one and may have it. Returns False if
        it may not have it now."""
        memory, rest = self._memory, self.end - self.start
        shared_bytes = len(memory.shared)
        is_own = self.data is not memory.shared
        if is_own and self.end < len(self.data) and not (is_another and memory.is_tight):
            return True
        if rest <= shared_bytes // 2 and not (self._is_large and not memory.is_tight):
            if not is_own or self.start:
                self._move(rest)
            return True
        if is_own and rest <= len(self.data) // 2 and not memory.is_tight:
            self.data[:rest] = self.data[self.start : self.end]
            self.start, self.end = 0, rest
            return True
        needed = self._frame_bytes()
        larger = min(max(2 * rest, shared_bytes + 1), needed + shared_bytes)
        if needed > rest and memory.may_take(self, larger - self._kept_bytes):
            self._move(larger)
            return True
        if not is_own:
            self._move(rest)
        return needed <= rest  # The rest has whole frames, which the owner does not take now.

    def _frame_bytes(self) -> int:
        try:
            end = self._memory.frame_end(self.data, self.start, self.end)
        except RemoteProtocolError:  # The owner finds the same, and closes the connection.
            return 0
        return 0 if end is None else end - self.start

    def _move(self, capacity: int) -> None:
        rest = self.end - self.start
        moved = bytearray(capacity)
        moved[:rest] = memoryview(self.data)[self.start : self.end]
        self.data, self.start, self.end = moved, 0, rest

    def _count(self) -> None:
        difference = len(self.data) - self._kept_bytes
        if difference:
            self._kept_bytes += difference
            self._memory.count(difference)
