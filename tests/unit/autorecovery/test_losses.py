"""When bookies that went away count as lost."""

from __future__ import annotations

from magnetar.autorecovery.losses import LossWatch, Verdict
from magnetar.ids import BookieId

ALL = tuple(BookieId(f"b{number}:1") for number in range(6))


class Cluster:
    def __init__(self, *, delay_s: float = 0.0, max_percent: int = 50) -> None:
        self.watch = LossWatch(max_percent=max_percent)
        self.delay_s = delay_s
        self.away: set[BookieId] = set()
        self.settled: set[BookieId] = set()

    def look(self, now: float, *, force: bool = False) -> Verdict:
        registered = [bookie for bookie in ALL if bookie not in self.away]
        return self.watch.look(
            now, known=ALL, registered=registered, settled=self.settled, delay_s=self.delay_s, force=force
        )


def test_bookie_is_lost_at_once_without_a_delay() -> None:
    cluster = Cluster()
    assert cluster.look(0.0) == Verdict()
    cluster.away = {ALL[2]}
    assert cluster.look(1.0).lost == (ALL[2],)


def test_bookie_that_comes_back_within_the_delay_was_not_lost() -> None:
    cluster = Cluster(delay_s=60)
    cluster.away = {ALL[2]}
    assert cluster.look(100.0) == Verdict(look_again_at=160.0)
    assert cluster.look(159.0).lost == ()
    cluster.away = set()
    assert cluster.look(159.5) == Verdict()
    cluster.away = {ALL[2]}
    assert cluster.look(160.0) == Verdict(look_again_at=220.0)  # Its time begins again.
    assert cluster.look(220.0).lost == (ALL[2],)


def test_second_bookie_that_goes_away_ends_the_delay_of_both() -> None:
    cluster = Cluster(delay_s=60)
    cluster.away = {ALL[2]}
    cluster.look(0.0)
    cluster.away = {ALL[2], ALL[4]}
    assert cluster.look(1.0).lost == (ALL[2], ALL[4])


def test_bookie_whose_loss_was_audited_is_not_decided_again() -> None:
    cluster = Cluster()
    cluster.away = cluster.settled = {ALL[2]}
    assert cluster.look(0.0) == Verdict()
    cluster.away = {ALL[2], ALL[3]}
    assert cluster.look(0.0).lost == (ALL[3],)


def test_most_bookies_at_once_are_waited_for_and_the_reason_is_said() -> None:
    cluster = Cluster()
    cluster.away = set(ALL[:4])
    verdict = cluster.look(0.0)
    assert verdict.lost == ()
    assert "4 of 6 bookies" in verdict.holding
    assert "magnetar recovery trigger" in verdict.holding
    cluster.away = set(ALL[:3])  # One is back: half of them may be lost.
    assert cluster.look(1.0).lost == ALL[:3]


def test_operator_may_declare_most_bookies_lost() -> None:
    cluster = Cluster(delay_s=60)
    cluster.away = set(ALL[:5])
    assert cluster.look(0.0).lost == ()
    assert cluster.look(0.0, force=True).lost == ALL[:5]


def test_one_of_two_bookies_is_not_most() -> None:
    watch = LossWatch(max_percent=10)
    verdict = watch.look(0.0, known=ALL[:2], registered=ALL[:1], settled=(), delay_s=0)
    assert verdict.lost == (ALL[1],)
