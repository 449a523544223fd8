"""Pipe: one direction of a connection.

Order:     what was sent waits in a queue of the connection. A timer carries nothing: it says "one may go", and takes
           what is first. So no delay and no schedule can reorder bytes, and `connection_made` is before all of them.
Held:      one that may not go now (link blocked, host without power, nobody reads) is counted, and goes when it may.
Ends:      a reset is an element too. After it nothing arrives.
Datagrams: if the link says so, each write has a timer of its own that carries it: lost, late, overtaken, twice.
Receiver:  timers run as its process. After its crash its kernel answers for it, if that still has power.
"""

from __future__ import annotations

import enum
from collections import deque
from contextvars import Context
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from magnetar.sim.network.link import DatagramFaults
    from magnetar.sim.network.network import SimNetwork
    from magnetar.sim.network.transport import SimTransport

_JOINED_BYTES_MAX: Final = 256 * 1024  # What one read brings at most.


class Signal(enum.Enum):
    MADE = "made"
    END = "end"
    RESET = "reset"


Element: TypeAlias = bytes | Signal


class Pipe:
    def __init__(
        self, network: SimNetwork, sender: SimTransport, receiver: SimTransport, datagrams: DatagramFaults | None
    ) -> None:
        self._network = network
        self._sender = sender
        self._receiver = receiver
        self._datagrams = datagrams
        self._queue: deque[Element] = deque()
        self._held = 0
        self._is_reset = False
        self._unknown_bytes = 0  # They arrived, but the sender cannot be told.
        self.unsent_bytes = 0  # Not arrived, as far as the sender knows.
        self.link = network.link(sender.host.name, receiver.host.name)
        self._back = network.link(receiver.host.name, sender.host.name)

    # --- the sender's side --------------------------------------------------------------------------------------------

    def send(self, element: Element) -> None:
        if self._is_reset:
            return
        if isinstance(element, bytes):
            self._network.counters.bytes += len(element)
            if self._datagrams is not None:
                self._send_datagram(element, self._datagrams)
                return
            self.unsent_bytes += len(element)
        self._is_reset = element is Signal.RESET
        self._queue.append(element)
        self._let_one_go()

    def cut(self, kept_bytes: int) -> None:
        """The sender is gone: of what has not arrived, this much is with the kernel and still goes."""
        kept: list[Element] = []
        for element in self._queue:
            if isinstance(element, bytes):
                element, kept_bytes = element[:kept_bytes], kept_bytes - min(kept_bytes, len(element))
            if element:
                kept.append(element)
        self._queue = deque(kept)
        self.unsent_bytes = sum(len(element) for element in kept if isinstance(element, bytes))
        self._unknown_bytes = 0

    def on_receiver_died(self) -> None:
        """Its timers died with it."""
        self._held = 0
        if self._queue:
            self._let_one_go()

    def release(self) -> None:
        """What was held tries again: the link is whole, or the host has power."""
        if not self._back.is_blocked and self._unknown_bytes:
            self._confirm(self._take_unknown())
        held, self._held = self._held, 0
        for _ in range(held):
            self._let_one_go()

    def release_to_reader(self) -> None:
        """What was held has arrived already: the receiver reads again."""
        held, self._held = self._held, 0
        for _ in range(held):
            self._network.loop.call_soon(self._one_may_go, context=self._context())

    def _let_one_go(self) -> None:
        self._network.loop.call_later(self._delay_s(), self._one_may_go, context=self._context())

    def _delay_s(self) -> float:
        if self._sender.host is self._receiver.host:
            return self._network.delay_s(self._sender.host, self._receiver.host)
        return self._network.delay_along(self.link)

    def _context(self) -> Context:
        return self._network.kernel.context if self._receiver.is_dead else self._receiver.process.context

    # --- the receiver's side ------------------------------------------------------------------------------------------

    def _one_may_go(self) -> None:
        if not self._queue:
            return  # It went together with the one before.
        if self.link.is_blocked or not self._receiver.host.is_up:
            self._held += 1
        elif self._receiver.is_dead or self._receiver.is_lost:
            self._answer_for_the_gone()
        elif self._receiver.holds_reading and not self._is_reset:
            self._held += 1
        else:
            self._deliver_first()

    def _deliver_first(self) -> None:
        element = self._queue.popleft()
        if element is Signal.MADE:
            self._receiver.on_made()
        elif self._is_reset and self._receiver.holds_reading:
            self._on_reset()  # Unread bytes are lost with it.
        elif element is Signal.RESET:
            self._on_reset()
        elif element is Signal.END:
            self._receiver.on_end()
        else:
            assert isinstance(element, bytes)
            self._deliver(self._joined(element))

    def _on_reset(self) -> None:
        self._queue.clear()
        self._network.counters.resets += 1
        self._receiver.on_reset()

    def _joined(self, data: bytes) -> bytes:
        """One read may bring several writes, and a part of one."""
        if self._datagrams is not None:
            return data
        if self._queue and self._network.joins():
            parts, size = [data], len(data)
            while self._queue and isinstance(following := self._queue[0], bytes) and size < _JOINED_BYTES_MAX:
                parts.append(following)
                size += len(following)
                self._queue.popleft()
            data = b"".join(parts)
        size = self._network.split_size(len(data))
        if size < len(data):
            self._put_back(data[size:])
        return data[:size]

    def _put_back(self, data: bytes) -> None:
        self._queue.appendleft(data)
        self._network.loop.call_soon(self._one_may_go, context=self._context())

    def _deliver(self, data: bytes) -> None:
        taken = self._receiver.on_data(data)
        if taken < len(data):
            self._put_back(data[taken:])
        self._network.note_chunk(data[:taken])
        if self._back.is_blocked:
            self._unknown_bytes += taken
        else:
            self._confirm(taken + self._take_unknown())

    def _confirm(self, size: int) -> None:
        self.unsent_bytes -= size
        self._sender.on_sent()

    def _take_unknown(self) -> int:
        size, self._unknown_bytes = self._unknown_bytes, 0
        return size

    def _answer_for_the_gone(self) -> None:
        """The receiver's kernel does, and knows of no such connection."""
        had_data = any(isinstance(element, bytes) for element in self._queue)
        self._queue.clear()
        if had_data:
            self._receiver.send_reset()

    # --- datagrams ----------------------------------------------------------------------------------------------------

    def _send_datagram(self, data: bytes, faults: DatagramFaults) -> None:
        counters, draw = self._network.counters, self._network.datagram_random.random
        if draw() < faults.loss:
            counters.lost += 1
            return
        copies = 2 if draw() < faults.duplicate else 1
        counters.duplicated += copies - 1
        for _ in range(copies):
            delay_s = self._delay_s()
            if draw() < faults.late:
                counters.late += 1
                delay_s += faults.late_max_s * draw()
            self._network.loop.call_later(delay_s, self._datagram_arrives, data, context=self._context())

    def _datagram_arrives(self, data: bytes) -> None:
        """It joins the queue, so that `connection_made` comes first, and whoever does not read gets it later."""
        if self.link.is_blocked or not self._receiver.host.is_up:
            self._network.counters.lost += 1
            return
        ends = [at for at, element in enumerate(self._queue) if element in (Signal.END, Signal.RESET)]
        self._queue.insert(ends[0] if ends else len(self._queue), data)
        self.unsent_bytes += len(data)
        self._one_may_go()
