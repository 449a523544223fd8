"""Reads that fence, at the bookies of one ensemble: how recovery asks.

Invariant: every request here fences, so whoever says "no such entry" will not store it for the old writer later.
Shape:     no task and no future per bookie or entry: a run of entries is one call of the channel, and a received run
           of answers is one call of the listener. A task is made only where there is no connection yet.
Told once: each entry at each position that was asked, with an answer or with what stands for none.
Read next: fence.py, recovery_reads.py (who asks), channel.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from magnetar.errors import LedgerRecoveryError, MagnetarError, WrongPasswordError
from magnetar.ids import BookieId
from magnetar.ledger.answers import Answer, Finding, describe, interpret_bodies
from magnetar.ledger.channel import Channel, ReadListener, ReadTicket
from magnetar.ledger.keys import LedgerKeys
from magnetar.ledger.parts import Parts
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.frames import Buffer

_TICKETS_MAX: Final = 256  # Beyond this, those that are settled are let go: far more than a window's worth.


class AnswerListener(Protocol):
    """Called on the loop, and never from inside `ask`."""

    def on_answers(self, position: int, answers: Sequence[tuple[int, Answer]]) -> None:
        """Of one bookie, by entry, as many as came at once."""

    def on_asking_failed(self, error: Exception) -> None:
        """Asking on is of no use. WrongPasswordError: a bookie knows the ledger with another key."""


class FencingReads:
    def __init__(self, ensemble: Sequence[BookieId], keys: LedgerKeys, parts: Parts, listener: AnswerListener) -> None:
        self.ensemble = ensemble
        self._keys = keys
        self._bookies = parts.bookies
        self._timeout_s = parts.config.read_timeout_ms / 1000
        self._listener = listener
        self._tickets: list[ReadTicket] = []
        self._connecting: dict[asyncio.Task[None], None] = {}

    def ask(self, position: int, entry_ids: Sequence[int]) -> None:
        """All different, and not under way there already. `LAST_ENTRY` asks for the last one."""
        channel = self._bookies.channel_nowait(self.ensemble[position])
        if channel is not None:
            self._send(position, channel, entry_ids)
            return
        work = self._connect_and_send(position, entry_ids)
        task = asyncio.get_running_loop().create_task(work, name=f"fencing reads of ledger {self._keys.ledger_id}")
        self._connecting[task] = None
        task.add_done_callback(lambda done: self._connecting.pop(done, None))

    async def _connect_and_send(self, position: int, entry_ids: Sequence[int]) -> None:
        try:
            channel = await self._bookies.channel(self.ensemble[position])
        except MagnetarError as error:
            self._tell_failure(position, entry_ids, error)
        except Exception as error:  # A bug must not leave a recovery waiting.
            self._listener.on_asking_failed(error)
        else:
            self._send(position, channel, entry_ids)

    def _send(self, position: int, channel: Channel, entry_ids: Sequence[int]) -> None:
        keys = self._keys
        to = _At(position, keys, self._listener)
        try:
            ticket = channel.send_reads(
                keys.ledger_id, entry_ids, to, timeout_s=self._timeout_s, fence_with=keys.master_key
            )
        except MagnetarError as error:
            asyncio.get_running_loop().call_soon(self._tell_failure, position, entry_ids, error)
            return
        if len(self._tickets) >= _TICKETS_MAX:
            self._tickets = [earlier for earlier in self._tickets if not earlier.is_settled]
        self._tickets.append(ticket)

    def _tell_failure(self, position: int, entry_ids: Sequence[int], error: MagnetarError) -> None:
        self._listener.on_answers(position, _unanswered(entry_ids, error))

    async def aclose(self) -> None:
        """What was sent, bookies still do, a fence above all; but nobody is told any more."""
        for ticket in self._tickets:
            ticket.cancel()
        self._tickets.clear()
        tasks = list(self._connecting)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


class _At(ReadListener):
    """What the bookie at one position says. What it does to us does not keep the others from answering."""

    __slots__ = ("_keys", "_listener", "_position")

    def __init__(self, position: int, keys: LedgerKeys, listener: AnswerListener) -> None:
        self._position = position
        self._keys = keys
        self._listener = listener

    def on_read_answers(
        self, channel: Channel, entry_ids: Sequence[int], codes: Sequence[int], bodies: Sequence[Buffer]
    ) -> None:
        del channel
        keys = self._keys
        try:
            answers = [
                (entry_id, interpret_bodies(keys, entry_id, Code(code), (body,)))
                for entry_id, code, body in zip(entry_ids, codes, bodies, strict=True)
            ]
        except WrongPasswordError as error:
            self._listener.on_asking_failed(error)
        else:
            self._listener.on_answers(self._position, answers)

    def on_reads_failed(self, channel: Channel, entry_ids: Sequence[int], error: MagnetarError) -> None:
        del channel
        self._listener.on_answers(self._position, _unanswered(entry_ids, error))


def _unanswered(entry_ids: Sequence[int], error: MagnetarError) -> list[tuple[int, Answer]]:
    answer = Answer(Finding.UNREACHABLE, why=str(error))
    return [(entry_id, answer) for entry_id in entry_ids]


def undecided(keys: LedgerKeys, why: str, answers: dict[BookieId, Answer]) -> LedgerRecoveryError:
    return LedgerRecoveryError(
        f"ledger {keys.ledger_id} was not recovered: {why} ({describe(answers)}). It is not closed, and its entries "
        "are as they were: try again when these bookies are back"
    )
