"""Reads entries from one certain bookie, and reports what it has of them.

Purpose:   a reader of a ledger is content with any copy. Repairs and checks ask each bookie for its own.
Invariant: every entry that was asked for has one answer; PRESENT means that the digest holds. A bookie that cannot be
           reached, or does not answer in time, gives UNREACHABLE.
Read next: ledger/channels/answers.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from magnetar.errors import MagnetarError
from magnetar.ids import BookieId
from magnetar.ledger.channels.answers import Answer, Finding, interpret_bodies
from magnetar.ledger.channels.bookies import Bookies
from magnetar.ledger.channels.channel import Channel
from magnetar.ledger.channels.pending_requests import ReadListener
from magnetar.ledger.metadata import LedgerKeys
from magnetar.wire.bookkeeper.codes import code_of_number
from magnetar.wire.bookkeeper.frames import Buffer


async def read_replicas(
    bookies: Bookies, bookie: BookieId, keys: LedgerKeys, entry_ids: Sequence[int], *, timeout_s: float
) -> dict[int, Answer]:
    """Raises WrongPasswordError, and no other error."""
    collected = _Collected(keys, len(entry_ids))
    try:
        channel = await bookies.channel(bookie)
        ticket = channel.send_reads(keys.ledger_id, entry_ids, collected, timeout_s=timeout_s)
    except MagnetarError as error:
        unreachable = Answer(Finding.UNREACHABLE, why=str(error))
        return dict.fromkeys(entry_ids, unreachable)
    try:
        await collected.done
    finally:
        ticket.cancel()
    return collected.answers


class _Collected(ReadListener):
    def __init__(self, keys: LedgerKeys, count: int) -> None:
        self._keys = keys
        self._count = count
        self.answers: dict[int, Answer] = {}
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_read_answers(
        self,
        channel: Channel,  # noqa: ARG002
        entry_ids: Sequence[int],
        codes: Sequence[int],
        bodies: Sequence[Buffer],
    ) -> None:
        if self.done.done():
            return
        try:
            for entry_id, code, body in zip(entry_ids, codes, bodies, strict=True):
                self.answers[entry_id] = interpret_bodies(self._keys, entry_id, code_of_number(code), (body,))
        except MagnetarError as error:
            self.done.set_exception(error)
            return
        self._end_if_complete()

    def on_reads_failed(self, channel: Channel, entry_ids: Sequence[int], error: MagnetarError) -> None:  # noqa: ARG002
        answer = Answer(Finding.UNREACHABLE, why=str(error))
        for entry_id in entry_ids:
            self.answers.setdefault(entry_id, answer)
        self._end_if_complete()

    def _end_if_complete(self) -> None:
        if len(self.answers) == self._count and not self.done.done():
            self.done.set_result(None)
