"""Each invariant says something when it is broken, and nothing when it is not. Events are made by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from magnetar.ids import BookieId, EntryId, LedgerId
from magnetar.metadata.bookkeeper.ledger_metadata import Fragment, LedgerMetadata, LedgerState, Versioned
from magnetar.sim.device import Fault
from magnetar.sim.ledgers.durable import DurableImage
from magnetar.sim.ledgers.invariants import ALL
from magnetar.sim.ledgers.options import draw
from magnetar.sim.ledgers.watch import AddAnswer, BookieWatch, LacAnswer, LedgerChange, LedgerHistory, ReadAnswer, Watch
from magnetar.sim.machine import SimMachine
from magnetar.sim.world import World
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.digests import DigestType

LEDGER = 7
WRITER = "client-0"
SUCCESSOR = "client-1"
BOOKIES = tuple(BookieId(f"bookie-{number}:3181") for number in range(4))
OPEN = LedgerMetadata(
    ledger_id=LedgerId(LEDGER),
    ensemble_size=3,
    write_quorum=3,
    ack_quorum=2,
    fragments=(Fragment(EntryId(0), BOOKIES[:3]),),
    digest_type=DigestType.CRC32C,
    password=b"",
)
IN_RECOVERY = replace(OPEN, state=LedgerState.IN_RECOVERY)


def closed(last: int, length: int = 0) -> LedgerMetadata:
    return replace(IN_RECOVERY, state=LedgerState.CLOSED, last_entry_id=EntryId(last), length=length)


class Scene:
    """A ledger of three bookies with five entries of one byte, of which none is acknowledged or stored."""

    def __init__(self, world: World) -> None:
        options = draw(0)
        self.watch = Watch(world, replace(options, ledger={**options.ledger, "ensemble_changes_max": 20}), ALL)
        for bookie_id in BOOKIES:
            machine = SimMachine(bookie_id)
            for path in ("/journal0", "/ledgers0"):
                machine.mount(path)
            image = DurableImage(machine, journals=1, directories=1)
            image.index_path = "/ledgers0/index"
            self.watch.bookies[bookie_id] = BookieWatch(bookie_id.partition(":")[0], bookie_id, machine, image)
        self.ledger = self.watch.history.created(LEDGER, b"", DigestType.CRC32C, WRITER)
        for entry_id in range(5):
            self.watch.history.sent(self.ledger, entry_id, b"x")
        self.watch.ledgers[LEDGER] = Versioned(OPEN, 0)

    @property
    def bookie(self) -> BookieWatch:
        return self.watch.bookies[BOOKIES[0]]

    @property
    def violated(self) -> list[str]:
        return list(dict.fromkeys(violation.invariant for violation in self.watch.violations))

    def change(self, after: LedgerMetadata, *, by: str = SUCCESSOR, before: LedgerMetadata | None = None) -> None:
        known = self.watch.ledgers[LEDGER]
        if before is not None:
            known = Versioned(before, known.version)
        new = Versioned(after, known.version + 1)
        self.watch.ledgers[LEDGER] = new
        self.watch.tell("on_ledger_change", LedgerChange(LEDGER, known, new, by))

    def denied(self, entry_id: int, *bookies: BookieId) -> None:
        for bookie in bookies:
            self.read(self.watch.bookies[bookie], entry_id, Code.ENOENTRY, fence=True)

    def read(
        self, bookie: BookieWatch, entry_id: int, code: Code, *, fence: bool, bodies: tuple[bytes, ...] = ()
    ) -> None:
        # An excused bookie's fence need not be durable: B1 has nothing to say here.
        self.watch.tell(
            "on_read_answer", ReadAnswer(bookie, SUCCESSOR, LEDGER, entry_id, int(code), fence, bodies, 9.0)
        )

    def added(self, bookie: BookieWatch, entry_id: int, *, recovery: bool = False) -> None:
        self.watch.tell("on_add_answer", AddAnswer(bookie, WRITER, LEDGER, entry_id, 0, recovery, False, 9.0))


@pytest.fixture
def scene() -> Iterator[Scene]:
    with World("0") as world:
        yield Scene(world)


def test_closing_before_what_was_acknowledged_is_truncation(scene: Scene) -> None:
    scene.ledger.acked = 3
    scene.denied(3, *BOOKIES[:2])
    scene.change(closed(2, 3), before=IN_RECOVERY)
    assert "L1" in scene.violated


def test_acknowledging_beyond_the_end_is_truncation(scene: Scene) -> None:
    scene.watch.ledgers[LEDGER] = Versioned(closed(0, 1), 2)
    scene.ledger.acked = 0
    scene.watch.tell("on_acked", scene.ledger, 1, 1, [1])
    assert "L1" in scene.violated


def test_an_acknowledged_entry_that_nobody_has_is_not_durable(scene: Scene) -> None:
    scene.watch.tell("on_acked", scene.ledger, 0, 0, [0])
    assert scene.violated == ["L2"]


@pytest.mark.parametrize(("first", "last", "tokens"), [(1, 1, [1]), (0, 1, [1, 0])])
def test_acknowledgements_out_of_order_are_seen(scene: Scene, first: int, last: int, tokens: list[int]) -> None:
    scene.watch.tell("on_acked", scene.ledger, first, last, tokens)
    assert "L6" in scene.violated


def test_an_acknowledgement_during_an_ensemble_change_is_seen(scene: Scene) -> None:
    scene.watch.tell("on_change_asked", LEDGER, WRITER, OPEN)
    scene.watch.tell("on_change_answered", LEDGER, WRITER, OPEN)
    scene.watch.tell("on_acked", scene.ledger, 0, 0, [0])
    assert "L6" not in scene.violated
    scene.ledger.acked = 0
    scene.watch.tell("on_change_asked", LEDGER, WRITER, OPEN)
    scene.watch.tell("on_acked", scene.ledger, 1, 1, [1])
    assert "L6" in scene.violated


def test_a_lac_beyond_the_writers_is_seen_wherever_it_is_told(scene: Scene) -> None:
    told: list[LedgerHistory] = [scene.ledger]
    scene.watch.tell("on_adds_received", scene.bookie, LEDGER, [1], [0])
    scene.watch.tell("on_lac_seen", told[0], SUCCESSOR, -1, 0)
    scene.watch.tell("on_lac_answer", LacAnswer(scene.bookie, LEDGER, 0, int(Code.EUA)))
    scene.watch.tell("on_read", told[0], SUCCESSOR, 0, b"x", 0)
    assert [violation.invariant for violation in scene.watch.violations] == ["L7"] * 4


def test_a_lac_that_goes_back_is_seen(scene: Scene) -> None:
    scene.ledger.acked = 4
    scene.watch.tell("on_lac_seen", scene.ledger, SUCCESSOR, -1, 3)
    assert scene.violated == []
    scene.watch.tell("on_lac_seen", scene.ledger, SUCCESSOR, 3, 2)
    assert scene.violated == ["L7"]


def test_other_bytes_than_were_sent_are_seen(scene: Scene) -> None:
    scene.ledger.acked = 4
    scene.watch.tell("on_read", scene.ledger, SUCCESSOR, 0, b"y", 4)
    scene.watch.tell("on_stored", scene.bookie, LEDGER, 9, bytes(40))
    scene.watch.tell("on_stored", scene.bookie, LEDGER, 0, bytes(40))
    assert [violation.invariant for violation in scene.watch.violations] == ["L3", "L5", "L5"]


def test_an_add_behind_a_fence_is_seen_unless_a_recovery_makes_it(scene: Scene) -> None:
    scene.bookie.fenced[LEDGER] = None
    scene.added(scene.bookie, 0, recovery=True)
    assert "L8" not in scene.violated
    scene.added(scene.bookie, 0)
    assert "L8" in scene.violated


def test_an_add_of_what_was_denied_is_seen(scene: Scene) -> None:
    scene.bookie.denied[LEDGER, 2] = None
    scene.added(scene.bookie, 1)
    assert "L9" not in scene.violated
    scene.added(scene.bookie, 2)
    assert "L9" in scene.violated


def test_denying_what_was_stored_before_the_question_is_seen(scene: Scene) -> None:
    scene.bookie.promised[LEDGER] = {0: 10.0, 1: 5.0}
    scene.read(scene.bookie, 0, Code.ENOENTRY, fence=True)
    assert "L9" not in scene.violated, "it was stored while the question was on its way"
    scene.read(scene.bookie, 1, Code.ENOENTRY, fence=True)
    scene.read(scene.bookie, 1, Code.ENOENTRY, fence=False)
    assert "L9" in scene.violated
    assert "B5" in scene.violated


def test_a_bookie_whose_disk_lies_is_excused_from_keeping_but_not_from_verifying(scene: Scene) -> None:
    scene.bookie.image.journals[0].faults.count(Fault.BIT_FLIP)
    scene.bookie.promised[LEDGER] = {1: 5.0}
    scene.read(scene.bookie, 1, Code.ENOENTRY, fence=True)
    assert scene.violated == []
    scene.read(scene.bookie, 1, Code.EOK, fence=False, bodies=(bytes(40),))
    assert scene.violated == ["B5"]


@pytest.mark.parametrize(
    ("before", "after", "by"),
    [
        (IN_RECOVERY, OPEN, WRITER),
        (closed(3, 4), replace(closed(3, 4), last_entry_id=EntryId(4), length=5), WRITER),
        (closed(3, 4), IN_RECOVERY, SUCCESSOR),
        (OPEN, replace(OPEN, fragments=(Fragment(EntryId(0), BOOKIES[1:]),)), SUCCESSOR),
        (OPEN, replace(OPEN, fragments=(Fragment(EntryId(0), (BOOKIES[0], BOOKIES[0], BOOKIES[1])),)), WRITER),
        (IN_RECOVERY, replace(IN_RECOVERY, fragments=(Fragment(EntryId(0), BOOKIES[1:]),)), SUCCESSOR),
        (OPEN, replace(IN_RECOVERY, fragments=(Fragment(EntryId(0), BOOKIES[1:]),)), SUCCESSOR),
        (OPEN, replace(OPEN, ack_quorum=1), WRITER),
    ],
)
def test_changes_that_nobody_may_make_are_seen(
    scene: Scene, before: LedgerMetadata, after: LedgerMetadata, by: str
) -> None:
    scene.change(after, before=before, by=by)
    assert "L10" in scene.violated


@pytest.mark.parametrize(
    ("before", "after", "by"),
    [
        (OPEN, IN_RECOVERY, SUCCESSOR),
        (OPEN, replace(OPEN, fragments=(*OPEN.fragments, Fragment(EntryId(2), BOOKIES[1:]))), WRITER),
        (OPEN, closed(4, 5), WRITER),
        (closed(4, 5), replace(closed(4, 5), fragments=(Fragment(EntryId(0), BOOKIES[1:]),)), "worker"),
    ],
)
def test_changes_that_somebody_may_make_are_not(
    scene: Scene, before: LedgerMetadata, after: LedgerMetadata, by: str
) -> None:
    scene.change(after, before=before, by=by)
    assert scene.violated == []


def test_a_close_with_too_few_denials_is_a_guess(scene: Scene) -> None:
    scene.denied(5, BOOKIES[0], BOOKIES[3])
    scene.change(closed(4, 5), before=IN_RECOVERY)
    assert "L11" in scene.violated


def test_a_close_with_enough_denials_is_none(scene: Scene) -> None:
    scene.denied(5, *BOOKIES[:2])
    scene.change(closed(4, 5), before=IN_RECOVERY)
    assert "L11" not in scene.violated


def test_an_answer_that_is_not_durable_is_seen(scene: Scene) -> None:
    scene.added(scene.bookie, 0)
    scene.read(scene.bookie, 0, Code.ENOENTRY, fence=True)
    scene.watch.tell("on_lac_answer", LacAnswer(scene.bookie, LEDGER, -1, 0))
    assert [violation.invariant for violation in scene.watch.violations] == ["B1"] * 3


def test_a_bookie_that_lost_a_disk_and_answers_is_seen(scene: Scene) -> None:
    scene.watch.tell("on_any_answer", scene.bookie)
    assert scene.violated == []
    scene.bookie.emptied = True
    scene.watch.tell("on_any_answer", scene.bookie)
    assert scene.violated == ["B7"]


def test_a_ledger_whose_bookies_are_replaced_again_and_again_is_seen(scene: Scene) -> None:
    limit = scene.watch.options.client_config().ledger.ensemble_changes_max
    for _ in range(limit):
        scene.change(OPEN, by=WRITER)
        scene.watch.world.loop.now += 0.1
    assert scene.violated == []
    scene.change(OPEN, by=WRITER)
    assert scene.violated == ["V4"]


def test_bookies_that_are_replaced_without_a_pause_while_nobody_takes_an_entry_are_seen(scene: Scene) -> None:
    for _ in range(OPEN.ensemble_size):
        scene.change(OPEN, by=WRITER)
    assert scene.violated == []  # Each of the first ones may have failed by itself.
    scene.change(OPEN, by=WRITER)
    assert scene.violated == ["V4"]


def test_bookies_that_are_replaced_after_one_of_them_took_an_entry_are_not(scene: Scene) -> None:
    for entry_id in range(3):
        for _ in range(OPEN.ensemble_size):
            scene.change(OPEN, by=WRITER)
        scene.added(scene.bookie, entry_id)
    assert "V4" not in scene.violated


def test_violations_of_one_invariant_are_told_a_few_times(scene: Scene) -> None:
    for _ in range(50):
        scene.watch.violated("L1", "again")
    assert 0 < len(scene.watch.violations) < 10
