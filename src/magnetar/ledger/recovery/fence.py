"""The fence: takes a ledger from its writer, and learns how far it may reach.

Every bookie of the last ensemble reads its last entry, and fences the ledger first. The fence is done when no write set
has Qa bookies that did not answer (quorum/coverage.py): from then on no entry of the old writer can be acknowledged.
The answers give the highest LAC, and the last entry of each bookie: where to look for entries after the LAC.

Invariant: Every request here fences, so a bookie that answers "no such entry" will not store it for the old writer
           later. Each entry at each position that was asked is reported once, with an answer or with what stands for
           none.
Failure:   Undecided bookies are asked again, with growing pauses, until no time is left for another try: a bookie that
           restarts, or a connection that is full, is no reason to give a ledger up.
Limits:    There is no task and no future per bookie or entry: a run of entries is one call of the channel, and a
           received run of answers is one call of the listener. A task is made only where a connection is missing.
Read next: recovery.py, reads.py (which asks for entries), ledger/channels/channel.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from magnetar.errors import LedgerRecoveryError, MagnetarError, WrongPasswordError
from magnetar.ids import BookieId
from magnetar.ledger.channels.answers import Answer, Finding, RetryDeadline, describe, interpret_bodies
from magnetar.ledger.channels.channel import Channel
from magnetar.ledger.channels.pending_requests import PendingReads, ReadListener
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.metadata import LedgerKeys
from magnetar.ledger.reading.lac import sizes_of
from magnetar.metadata.bookkeeper.ledger_metadata import NO_ENTRY, LedgerMetadata
from magnetar.quorum.coverage import Coverage, EnsembleCoverage, Meaning, meaning_of
from magnetar.quorum.sizes import QuorumSizes
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.digests import Entry
from magnetar.wire.bookkeeper.frames import LAST_ENTRY, Buffer

_TICKETS_MAX: Final = 256  # Beyond this, settled tickets are dropped: far more than a window's worth.


class AnswerListener(Protocol):
    """Is called on the loop, and never from inside `ask`."""

    def on_answers(self, position: int, answers: Sequence[tuple[int, Answer]]) -> None:
        """Receives answers of one bookie, by entry, as many as came at once."""

    def on_asking_failed(self, error: Exception) -> None:
        """Reports that further requests are useless. WrongPasswordError: a bookie has another key for the ledger."""


class FencingReads:
    def __init__(
        self, ensemble: Sequence[BookieId], keys: LedgerKeys, context: LedgerContext, listener: AnswerListener
    ) -> None:
        self.ensemble = ensemble
        self._keys = keys
        self._bookies = context.bookies
        self._timeout_s = context.config.read_timeout_ms / 1000
        self._listener = listener
        self._tickets: list[PendingReads] = []
        self._connecting: dict[asyncio.Task[None], None] = {}

    def ask(self, position: int, entry_ids: Sequence[int]) -> None:
        """Asks for these entries, all different and not in progress there. `LAST_ENTRY` asks for the last one."""
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
            self._report_failure(position, entry_ids, error)
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
            asyncio.get_running_loop().call_soon(self._report_failure, position, entry_ids, error)
            return
        if len(self._tickets) >= _TICKETS_MAX:
            self._tickets = [earlier for earlier in self._tickets if not earlier.is_settled]
        self._tickets.append(ticket)

    def _report_failure(self, position: int, entry_ids: Sequence[int], error: MagnetarError) -> None:
        self._listener.on_answers(position, _unanswered(entry_ids, error))

    async def aclose(self) -> None:
        """Ends the reports. Bookies carry out what was sent, above all a fence."""
        for ticket in self._tickets:
            ticket.cancel()
        self._tickets.clear()
        tasks = list(self._connecting)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


class _At(ReadListener):
    """Listens to the bookie at one position. Its failures do not keep the others from answering."""

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


_LAST: Final = (LAST_ENTRY,)


class Fenced(NamedTuple):
    last_entries: Mapping[int, Entry]
    """The last entries of the bookies that returned one, by position in the ensemble."""
    took_s: float
    """How long it took until enough bookies had answered."""

    @property
    def lac(self) -> int:
        """The highest LAC that any bookie reported."""
        return max((entry.lac for entry in self.last_entries.values()), default=int(NO_ENTRY))

    def length_at(self, entry_id: int) -> int | None:
        """Returns the ledger's length up to and including this entry, if it is the last one of some bookie."""
        for entry in self.last_entries.values():
            if entry.entry_id == entry_id:
                return entry.length
        return None


async def fence(metadata: LedgerMetadata, keys: LedgerKeys, context: LedgerContext, until: float) -> Fenced:
    """Returns when the old writer can no longer get an entry acknowledged; otherwise raises LedgerRecoveryError.

    `until`: the deadline, in the loop's time.
    """
    loop = asyncio.get_running_loop()
    patience: RetryDeadline | None = None
    sizes, ensemble = sizes_of(metadata), metadata.fragments[-1].ensemble
    while True:
        began = loop.time()
        round_ = _Round(sizes, ensemble)
        asking = FencingReads(ensemble, keys, context, round_)
        try:
            for position in range(len(ensemble)):
                asking.ask(position, _LAST)
            await round_.decided
        finally:
            await asking.aclose()
        if round_.coverage.state is Coverage.COVERED:
            return Fenced(round_.last_entries, loop.time() - began)
        patience = patience or RetryDeadline(context, until)
        pause_s = patience.next_pause_s()
        if pause_s is None:
            raise undecided(keys, "too few bookies could be fenced", round_.answers)
        await asyncio.sleep(pause_s)


class _Round(AnswerListener):
    """Asks every bookie once, and collects the answers until they are enough or cannot be any more."""

    def __init__(self, sizes: QuorumSizes, ensemble: Sequence[BookieId]) -> None:
        self.coverage = EnsembleCoverage(sizes)
        self.answers: dict[BookieId, Answer] = {}
        self.last_entries: dict[int, Entry] = {}
        self.decided: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ensemble = ensemble

    def on_answers(self, position: int, answers: Sequence[tuple[int, Answer]]) -> None:
        if self.decided.done():
            return
        for _, answer in answers:
            self.answers[self._ensemble[position]] = answer
            if answer.entries:
                self.last_entries[position] = answer.entries[0]
            (self.coverage.on_answer if _is_fenced(answer) else self.coverage.on_failure)(position)
        if self.coverage.state is not Coverage.PENDING:
            self.decided.set_result(None)

    def on_asking_failed(self, error: Exception) -> None:
        if not self.decided.done():
            self.decided.set_exception(error)


def _is_fenced(answer: Answer) -> bool:
    """Counts a damaged entry as fenced: a bookie fences before it looks for the entry, so only a LAC is hidden."""
    return answer.code is not None and meaning_of(answer.code) is not Meaning.NOTHING
