"""Planting: what is named is changed, for a while; what does not exist any more is reported loudly."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from magnetar.ids import BookieId, EntryId, LedgerId
from magnetar.ledger.recovery import recovery
from magnetar.ledger.recovery.recovery import first_to_read
from magnetar.ledger.writing.pending_adds import PendingAdds
from magnetar.metadata.bookkeeper.ledger_metadata import Fragment, LedgerMetadata
from magnetar.quorum.sizes import QuorumSizes
from magnetar.sim.mutants.planting import Edit, TargetVanishedError, edited, function_of, planted
from magnetar.sim.mutants.registry import MUTANTS
from magnetar.sim.mutants.scenes import SCENES


def greeting(name: str) -> str:
    before = "good"
    return f"{before} morning, {name}"


def counter() -> object:
    count = 0

    def inner() -> int:
        return count

    return inner


def test_every_planted_bug_is_registered_and_documented() -> None:
    page = (Path(__file__).parents[4] / "docs" / "simulation.md").read_text()
    documented = {int(number) for number in re.findall(r"^\| (\d+) \| [^|]+ \| `", page, re.MULTILINE)}
    assert sorted(MUTANTS) == sorted({*documented, *SCENES})
    assert sorted(SCENES) == [16, 17, 18, 19, 20, 21, 33, 80, 81, 82, 83, 84, 85]


@pytest.mark.parametrize("number", MUTANTS)
def test_planting_changes_every_function_that_it_names_and_gives_it_back(number: int) -> None:
    mutant = MUTANTS[number]
    functions = list(dict.fromkeys(function_of(edit) for edit in mutant.edits))
    before = [function.__code__ for function in functions]
    assert functions
    with mutant.plant():
        for function, code in zip(functions, before, strict=True):
            assert _instructions(function.__code__) != _instructions(code), function
    assert [function.__code__ for function in functions] == before


def _instructions(code: object) -> tuple[object, ...]:
    return tuple(getattr(code, name) for name in ("co_code", "co_consts", "co_names", "co_varnames"))


@pytest.mark.parametrize("number", MUTANTS)
def test_bug_whose_target_has_changed_is_told_and_not_planted(number: int) -> None:
    edit = MUTANTS[number].edits[0]
    code = function_of(edit).__code__
    gone = Edit(edit.target, edit.before + " # and more", edit.after)
    with pytest.raises(TargetVanishedError, match="0 times"), planted([gone]):
        pass
    assert function_of(edit).__code__ is code


def test_edited_lines_run_and_the_old_ones_come_back() -> None:
    with planted([Edit(greeting, '"good"', '"bad"')]):
        assert greeting("Ada") == "bad morning, Ada"
    assert greeting("Ada") == "good morning, Ada"


def test_old_lines_come_back_when_the_run_fails() -> None:
    with pytest.raises(ZeroDivisionError), planted([Edit(greeting, '"good"', "str(1 // 0)")]):
        greeting("Ada")
    assert greeting("Ada") == "good morning, Ada"


def test_lines_that_stand_there_twice_are_refused() -> None:
    with pytest.raises(TargetVanishedError, match="2 times"):
        edited([Edit(greeting, "before", "after")])


def test_function_inside_of_another_is_refused() -> None:
    inner = counter()
    assert callable(inner)
    with pytest.raises(TargetVanishedError, match="around it"):
        edited([Edit(inner, "return count", "return 7")])


def test_what_is_no_function_of_python_is_refused() -> None:
    with pytest.raises(TargetVanishedError, match="no function"):
        edited([Edit(len, "a", "b")])


def test_names_of_the_new_lines_are_gone_afterwards() -> None:
    with planted([Edit(greeting, '"good"', "planted_word", names={"planted_word": "odd"})]):
        assert greeting("Ada") == "odd morning, Ada"
    assert "planted_word" not in globals()


def test_name_that_the_module_has_itself_is_refused() -> None:
    edit = Edit(greeting, '"good"', "counter", names={"counter": "odd"})
    with pytest.raises(TargetVanishedError, match="of its own"), planted([edit]):
        pass
    assert callable(counter)
    assert greeting("Ada") == "good morning, Ada"


def test_second_edit_that_fails_leaves_the_first_function_as_it_was() -> None:
    edits = [Edit(greeting, '"good"', '"bad"'), Edit(counter, "nothing of this", "")]
    with pytest.raises(TargetVanishedError), planted(edits):
        pass
    assert greeting("Ada") == "good morning, Ada"


def test_who_imported_the_function_before_gets_the_bug_too() -> None:
    ensemble = (BookieId("a:1"), BookieId("b:1"))
    metadata = LedgerMetadata(
        ledger_id=LedgerId(1),
        ensemble_size=2,
        write_quorum=2,
        ack_quorum=2,
        fragments=(Fragment(EntryId(0), ensemble), Fragment(EntryId(5), ensemble)),
    )
    assert recovery.first_to_read is first_to_read
    assert recovery.first_to_read(metadata, -1) == 5
    with MUTANTS[25].plant():
        assert recovery.first_to_read(metadata, -1) == 0


def test_planted_bug_does_what_its_sentence_says() -> None:
    def confirmed_by_one() -> list[str]:
        pending: PendingAdds[str] = PendingAdds(QuorumSizes(3, 3, 2))
        pending.append(b"", b"payload", "token")
        pending.mark(0, [0])
        return pending.take_confirmed()

    assert confirmed_by_one() == []
    with MUTANTS[1].plant():
        assert confirmed_by_one() == ["token"]
