"""LossWatch: decides which bookies count as lost, as they come and go: a pure decision.

Order:     a known bookie that is not registered is away. It is lost when it has been away for the delay, or at once if
           another bookie is away too: two failures leave no time. A bookie that comes back in time was not lost. What
           was audited as lost is settled, and not decided again until it comes back.
Failure:   If more than a certain share of the bookies vanish together, nothing is lost yet: the network, or the
           metadata store, is a likelier cause than so many disks, and marking all of their ledgers would copy a whole
           cluster. The watch then waits, and says so, until enough are back or an operator overrides it.
Limits:    Times are seconds of any clock that does not go back, passed in with every call.
Read next: auditor.py
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from magnetar.ids import BookieId


@dataclass(frozen=True, slots=True)
class Verdict:
    lost: tuple[BookieId, ...] = ()
    """Bookies whose ledgers must be marked now; sorted."""
    look_again_at: float | None = None
    """When the next one may be lost, if nothing else happens."""
    holding: str = ""
    """Why nothing is marked although bookies are away."""


class LossWatch:
    def __init__(self, *, max_percent: int) -> None:
        self._max_percent = max_percent
        self._away_since: dict[BookieId, float] = {}

    @property
    def away(self) -> dict[BookieId, float]:
        """The bookies that are away and not audited yet, and since when."""
        return dict(self._away_since)

    def look(
        self,
        now: float,
        *,
        known: Collection[BookieId],
        registered: Collection[BookieId],
        settled: Collection[BookieId],
        delay_s: float,
        force: bool = False,
    ) -> Verdict:
        """`force`: an operator has asked for an audit now, whatever the delay and the share."""
        away = sorted(bookie for bookie in known if bookie not in registered and bookie not in settled)
        self._away_since = {bookie: self._away_since.get(bookie, now) for bookie in away}
        if not away:
            return Verdict()
        if force:
            return Verdict(tuple(away))
        if holding := self._too_many(away, registered):
            return Verdict(holding=holding)
        if len(away) > 1:
            return Verdict(tuple(away))
        due_at = self._away_since[away[0]] + delay_s
        return Verdict(tuple(away)) if now >= due_at else Verdict(look_again_at=due_at)

    def _too_many(self, away: Collection[BookieId], registered: Collection[BookieId]) -> str:
        in_all = len(away) + len(registered)
        if len(away) < 2 or len(away) * 100 <= self._max_percent * in_all:
            return ""
        return (
            f"{len(away)} of {in_all} bookies are away at once ({', '.join(sorted(away)[:5])}"
            f"{', …' if len(away) > 5 else ''}): nothing is marked until some are back; if they are lost for good, "
            "run `magnetar recovery trigger`"
        )

    def forget(self, bookie: BookieId) -> None:
        """Notes that the bookie's ledgers were marked."""
        self._away_since.pop(bookie, None)
