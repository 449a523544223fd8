"""One bookie's answer to a read, its words for an error message, and how long bookies are asked again.

Invariant: PRESENT means that the digest holds. Only "no such entry" and "no such ledger" mean ABSENT; a time-out, a
           lost connection, a damaged entry, and a bookie in limbo or too busy say nothing about the entry
           (quorum/coverage.py).
Failure:   A bookie that refuses the key ends the operation: another bookie would not make the password right.
Limits:    A bookie that answers "too many requests" is asked again for as long as the caller would have waited for one
           answer: such an overload is usually short. Adds have their own pauses (ledger/writing/ensemble_slot.py), as a
           writer continues with the other bookies meanwhile. Recovery tries again until another try could not be
           finished in time. So it ends with the answers of its bookies, which its error can name, and not with a
           time-out. All pauses grow, and are random, so that clients that were refused together do not come back
           together.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, Protocol, TypeVar

from magnetar.errors import (
    DigestMismatchError,
    EntryAbsentError,
    EntryDamagedError,
    EntryUnavailableError,
    LedgerError,
    MagnetarError,
)
from magnetar.ids import BookieId, LedgerId
from magnetar.ledger.channels.bookies import Bookies
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.metadata import LedgerKeys, wrong_password
from magnetar.quorum.coverage import Meaning
from magnetar.runtime.backoff import Backoff
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.digests import Entry
from magnetar.wire.bookkeeper.frames import LAST_ENTRY, Buffer
from magnetar.wire.bookkeeper.messages import AnyRequest, AnyResponse, BatchReadResponse, ReadEntry, ReadResponse


class Finding(enum.Enum):
    """Classifies an answer. The values are the words of error messages."""

    PRESENT = "has it"
    ABSENT = "does not have it"
    LIMBO = "may have lost entries of this ledger and cannot tell"
    DAMAGED = "has it damaged, or cannot read its disk"
    UNREACHABLE = "did not answer"
    REFUSED = "refused"


_FINDINGS = {
    Code.EOK: Finding.PRESENT,
    Code.ENOENTRY: Finding.ABSENT,
    Code.ENOLEDGER: Finding.ABSENT,
    Code.EUNKNOWNLEDGERSTATE: Finding.LIMBO,
    Code.EIO: Finding.DAMAGED,
}
_MEANINGS = {Finding.PRESENT: Meaning.PRESENT, Finding.ABSENT: Meaning.ABSENT}


@dataclass(frozen=True, slots=True)
class Answer:
    finding: Finding
    entries: Sequence[Entry] = ()
    """One entry if PRESENT; at least one for a batch."""
    code: Code | None = None
    """None: no answer came."""
    max_lac: int | None = None
    """In v3, the LAC that the bookie knows."""
    why: str = ""

    @property
    def meaning(self) -> Meaning:
        return _MEANINGS.get(self.finding, Meaning.NOTHING)

    def __str__(self) -> str:
        return f"{self.finding.value} ({self.why})" if self.why else self.finding.value


async def exchange(
    bookies: Bookies, bookie_id: BookieId, request: AnyRequest, timeout_s: float
) -> AnyResponse | Answer:
    """Returns the response, or an answer that stands for a response that did not come."""
    try:
        channel = await bookies.channel(bookie_id)
        return await channel.request(request, timeout_s=timeout_s)
    except MagnetarError as error:  # Whatever this bookie does, the others can still answer.
        return Answer(Finding.UNREACHABLE, why=str(error))


def interpret(keys: LedgerKeys, entry_id: int, response: AnyResponse | Answer, *, entries_max: int = 1) -> Answer:
    """Interprets the answer to a read of one entry, `LAST_ENTRY` included, or of a batch that begins with this
    entry."""
    if isinstance(response, Answer):
        return response
    bodies = _bodies(response)[:entries_max]  # A bookie may send more than was asked for; that is ignored.
    max_lac = response.max_lac if isinstance(response, ReadResponse) else None
    return interpret_bodies(keys, entry_id, response.code, bodies, max_lac)


def interpret_bodies(
    keys: LedgerKeys, entry_id: int, code: Code, bodies: Sequence[Buffer], max_lac: int | None = None
) -> Answer:
    """Interprets a code and bodies. The bodies count only if the code is EOK."""
    if code is Code.EUA:
        raise wrong_password(keys.ledger_id)
    if code is not Code.EOK:
        finding = _FINDINGS.get(code, Finding.REFUSED)
        return Answer(finding, code=code, why=code.name if finding is Finding.REFUSED else "")
    try:
        entries = _open(keys, entry_id, bodies)
    except DigestMismatchError as error:
        return Answer(Finding.DAMAGED, code=code, why=str(error))
    if not entries:
        return Answer(Finding.REFUSED, code=code, why="an answer without an entry")
    return Answer(Finding.PRESENT, entries, code, max_lac)


def _bodies(response: AnyResponse) -> Sequence[Buffer]:
    match response:
        case ReadResponse():
            return (response.body,)
        case BatchReadResponse():
            return response.bodies
    return ()


def _open(keys: LedgerKeys, first: int, bodies: Sequence[Buffer]) -> list[Entry]:
    if first == LAST_ENTRY:
        return [keys.digest.open_last(keys.ledger_id, body) for body in bodies]
    return keys.digest.open_run(keys.ledger_id, first, bodies)


async def ask(bookies: Bookies, bookie_id: BookieId, keys: LedgerKeys, request: ReadEntry, timeout_s: float) -> Answer:
    """Reads one entry from one bookie. WrongPasswordError is the only error."""
    return interpret(keys, request.entry_id, await exchange(bookies, bookie_id, request, timeout_s))


def unreadable(ledger_id: LedgerId, entry_id: int, answers: Mapping[BookieId, Answer]) -> LedgerError:
    """Returns the error of a read that no bookie could serve."""
    what = f"entry {entry_id} of ledger {ledger_id}"
    findings = [answer.finding for answer in answers.values()]
    if all(finding is Finding.ABSENT for finding in findings):
        return EntryAbsentError(f"{what} is on none of its bookies: {', '.join(answers)}")
    said = describe(answers)
    if all(finding in (Finding.ABSENT, Finding.DAMAGED) for finding in findings):
        return EntryDamagedError(f"{what} is damaged wherever it is ({said}): check the disks of these bookies")
    return EntryUnavailableError(f"{what} could not be read ({said}): try again when these bookies are back")


def describe(answers: Mapping[BookieId, Answer]) -> str:
    return "; ".join(f"{bookie} {answer}" for bookie, answer in answers.items())


_BUSY_PAUSE_FIRST_S: Final = 0.02
_BUSY_PAUSE_LONGEST_S: Final = 0.5
_RECOVERY_PAUSE_LONGEST_S: Final = 2.0  # Short compared with a recovery's time; long for a bookie that does not answer.


class Coded(Protocol):
    @property
    def code(self) -> Code | None: ...


CodedT = TypeVar("CodedT", bound=Coded)


def is_busy(answer: Coded) -> bool:
    return answer.code is Code.ETOOMANYREQUESTS


class BusyRetries:
    """Paces the retries of one call. Their time begins with the first pause: before that, the call may have waited for
    other bookies, which did not answer, and those that were busy are asked again in any case."""

    __slots__ = ("_backoff", "_give_up", "_loop", "_patience_s")

    def __init__(self, random: Random, patience_s: float) -> None:
        self._backoff = Backoff(random, _BUSY_PAUSE_FIRST_S, _BUSY_PAUSE_LONGEST_S)
        self._loop = asyncio.get_running_loop()
        self._patience_s = patience_s
        self._give_up: float | None = None

    async def pause(self) -> bool:
        """Returns True when the bookies may be asked again; False at once if the time is over."""
        now = self._loop.time()
        if self._give_up is None:
            self._give_up = now + self._patience_s
        elif now > self._give_up:
            return False
        await asyncio.sleep(self._backoff.next_s())
        return True


async def retry_while_busy(ask: Callable[[], Awaitable[CodedT]], random: Random, patience_s: float) -> CodedT:
    """Returns the bookie's first answer that is not "too many requests", or the last one when the time is over."""
    retries = BusyRetries(random, patience_s)
    while True:
        answer = await ask()
        if not is_busy(answer) or not await retries.pause():
            return answer


class RetryDeadline:
    """Paces the retries of a recovery that must be done at a certain time."""

    __slots__ = ("_backoff", "_last_try", "_loop")

    def __init__(self, context: LedgerContext, until: float) -> None:
        """`until`: the deadline, in the loop's time."""
        self._backoff = Backoff(context.entropy.random, longest_s=_RECOVERY_PAUSE_LONGEST_S)
        self._last_try = until - context.config.read_timeout_ms / 1000
        self._loop = asyncio.get_running_loop()

    def next_pause_s(self) -> float | None:
        """Returns how long to wait before the next try, or None if no time is left for one."""
        pause_s = self._backoff.next_s()
        return None if self._loop.time() + pause_s > self._last_try else pause_s
