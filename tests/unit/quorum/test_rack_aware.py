"""Racks: the rule, what is wished for, and what is left when a rack is lost; against brute force over small circles."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.errors import NotEnoughBookiesError
from magnetar.ids import BookieId
from magnetar.quorum.candidates import Candidates
from magnetar.quorum.placement import Adherence
from magnetar.quorum.rack_aware import Circle, Goal, Kind, RackAwarePlacement, arrange
from magnetar.quorum.sizes import QuorumSizes
from tests.unit.quorum.worlds import circle_exists, cluster, is_circle

NAMES = ("/a", "/b", "/c", "/d")
rack_counts = st.lists(st.integers(0, 4), min_size=1, max_size=4)
ensembles = st.integers(1, 6).flatmap(lambda e: st.integers(1, e).map(lambda w: QuorumSizes(e, w, w)))
seeds = st.integers(0, 2**32)


def world(counts: list[int]) -> Candidates:
    return cluster(dict(zip(NAMES, counts, strict=False)))


def racks_of(candidates: Candidates, ensemble: tuple[BookieId, ...]) -> list[str]:
    return [candidates.topology.rack_of(bookie) for bookie in ensemble]


def exists(counts: list[int], sizes: QuorumSizes, distinct: int, *, neighbours_differ: bool) -> bool:
    order = tuple(sorted(counts))  # Racks have no names here: fewer worlds to try.
    return circle_exists(order, sizes.ensemble, sizes.write, distinct, neighbours_differ=neighbours_differ)


@given(st.integers(1, 6), ensembles)
def test_in_a_single_rack_the_choice_is_that_of_the_search(count: int, sizes: QuorumSizes) -> None:
    """Which is left out there."""
    if count < sizes.ensemble:
        return
    places = [(BookieId(f"b-{number}"), "/a") for number in range(count)]
    nobody = (None,) * sizes.ensemble
    found = arrange(Circle(nobody, nobody), places, Goal(sizes.write, (Kind(str, 1),), neighbours_differ=False))
    assert found == [bookie for bookie, _ in places[: sizes.ensemble]]


# --- new ensembles ----------------------------------------------------------------------------------------------------


@given(rack_counts, ensembles, seeds)
def test_neighbours_stand_in_different_racks_whenever_that_is_possible(
    counts: list[int], sizes: QuorumSizes, seed: int
) -> None:
    if sum(counts) < sizes.ensemble:
        return
    candidates = world(counts)
    placement = RackAwarePlacement(Random(seed)).new_ensemble(sizes, candidates)
    racks = racks_of(candidates, placement.ensemble)
    possible = exists(counts, sizes, min(sizes.write, 2), neighbours_differ=True)
    assert is_circle(racks, sizes.write, 1, neighbours_differ=True) == possible


@given(rack_counts, ensembles, st.integers(1, 4), seeds)
def test_every_write_set_spans_the_racks_it_must_whenever_that_is_possible(
    counts: list[int], sizes: QuorumSizes, min_racks: int, seed: int
) -> None:
    if sum(counts) < sizes.ensemble:
        return
    candidates = world(counts)
    placement = RackAwarePlacement(Random(seed), min_racks=min_racks).new_ensemble(sizes, candidates)
    possible = exists(counts, sizes, min(sizes.write, min_racks), neighbours_differ=False)
    assert placement.adherence is (Adherence.STRICT if possible else Adherence.FAIL)


@given(rack_counts, ensembles, seeds)
def test_every_write_set_spans_as_many_racks_as_is_possible_with_neighbours_apart(
    counts: list[int], sizes: QuorumSizes, seed: int
) -> None:
    if sum(counts) < sizes.ensemble or not exists(counts, sizes, 1, neighbours_differ=True):
        return
    candidates = world(counts)
    racks = racks_of(candidates, RackAwarePlacement(Random(seed)).new_ensemble(sizes, candidates).ensemble)
    best = max(d for d in range(1, sizes.write + 1) if d == 1 or exists(counts, sizes, d, neighbours_differ=True))
    assert is_circle(racks, sizes.write, best, neighbours_differ=True)


@given(rack_counts, ensembles, st.integers(1, 4), seeds)
def test_an_enforced_rule_is_kept_or_the_ensemble_refused_because_it_cannot_be(
    counts: list[int], sizes: QuorumSizes, min_racks: int, seed: int
) -> None:
    candidates = world(counts)
    policy = RackAwarePlacement(Random(seed), min_racks=min_racks, enforced=True)
    if exists(counts, sizes, min(sizes.write, min_racks), neighbours_differ=False):
        assert policy.new_ensemble(sizes, candidates).adherence is Adherence.STRICT
    else:
        with pytest.raises(NotEnoughBookiesError):
            policy.new_ensemble(sizes, candidates)


def test_racks_are_used_alike_where_there_are_more_than_a_write_set_needs() -> None:
    candidates = world([5, 5, 5, 5])
    ensemble = RackAwarePlacement(Random(1)).new_ensemble(QuorumSizes(4, 2, 2), candidates).ensemble
    assert sorted(racks_of(candidates, ensemble)) == ["/a", "/b", "/c", "/d"]


def test_the_worked_example_of_five_bookies_in_three_racks() -> None:
    sizes = QuorumSizes(4, 3, 2)
    policy = RackAwarePlacement(Random(1))
    whole = cluster({"/a": 2, "/b": 2, "/c": 1})
    placement = policy.new_ensemble(sizes, whole)
    assert placement.adherence is Adherence.STRICT
    assert is_circle(racks_of(whole, placement.ensemble), 3, 2, neighbours_differ=True)
    assert policy.new_ensemble(sizes, cluster({"/a": 2, "/b": 2})).adherence is Adherence.STRICT
    assert policy.new_ensemble(sizes, cluster({"/a": 4})).adherence is Adherence.FAIL
    ensemble = tuple(BookieId(name) for name in ("a-0", "b-0", "a-1", "c-0"))
    assert policy.replace((1,), ensemble, sizes, whole).ensemble == ("a-0", "b-1", "a-1", "c-0")


def test_unknown_bookies_count_as_one_rack() -> None:
    candidates = cluster({"": 3, "/a": 3})
    ensemble = RackAwarePlacement(Random(1)).new_ensemble(QuorumSizes(2, 2, 2), candidates).ensemble
    assert sorted(racks_of(candidates, ensemble)) == ["/a", "/default-rack"]


def test_a_cluster_of_which_nobody_said_the_racks_is_used_and_reported() -> None:
    placement = RackAwarePlacement(Random(1)).new_ensemble(QuorumSizes(3, 3, 2), cluster({"": 5}))
    assert placement.adherence is Adherence.FAIL


def test_bookies_of_unknown_rack_are_not_used_where_the_rule_is_enforced() -> None:
    policy = RackAwarePlacement(Random(1), enforced=True)
    sizes = QuorumSizes(2, 2, 2)
    for _ in range(20):
        candidates = cluster({"": 5, "/a": 1, "/b": 1})
        assert set(policy.new_ensemble(sizes, candidates).ensemble) == {"a-0", "b-0"}
    with pytest.raises(NotEnoughBookiesError):
        policy.new_ensemble(sizes, cluster({"": 5, "/a": 1}))


def test_one_copy_needs_no_second_rack_even_if_enforced() -> None:
    policy = RackAwarePlacement(Random(1), enforced=True)
    assert policy.new_ensemble(QuorumSizes(2, 1, 1), world([3])).adherence is Adherence.STRICT


def test_a_quarantined_bookie_is_taken_where_only_it_keeps_an_enforced_rule() -> None:
    candidates = cluster({"/a": 3, "/b": 1}, quarantined=["b-0"])
    sizes = QuorumSizes(2, 2, 2)
    placement = RackAwarePlacement(Random(1), enforced=True).new_ensemble(sizes, candidates)
    assert placement.quarantined == ("b-0",)
    assert RackAwarePlacement(Random(1)).new_ensemble(sizes, candidates).quarantined == ()


@given(seeds)
def test_where_quarantined_bookies_must_help_to_keep_a_rule_healthy_ones_of_the_same_rack_still_go_first(
    seed: int,
) -> None:
    candidates = cluster({"/a": 4, "/b": 1}, quarantined=["a-1", "a-2", "a-3", "b-0"])
    placement = RackAwarePlacement(Random(seed), enforced=True).new_ensemble(QuorumSizes(2, 2, 2), candidates)
    assert set(placement.ensemble) == {"a-0", "b-0"}


# --- a rack is lost ---------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 3), min_size=2, max_size=4), ensembles, seeds)
def test_with_a_rack_lost_the_rest_is_still_placed(counts: list[int], sizes: QuorumSizes, seed: int) -> None:
    rest = [0, *counts[1:]]
    policy = RackAwarePlacement(Random(seed))
    if sum(rest) < sizes.ensemble:
        return
    before, after = world(counts), world(rest)
    ensemble = policy.new_ensemble(sizes, before).ensemble
    lost = [place for place, bookie in enumerate(ensemble) if before.topology.rack_of(bookie) == "/a"]
    spare = len(after.writable) - (sizes.ensemble - len(lost))
    if spare >= len(lost) > 0:
        moved = policy.replace(lost, ensemble, sizes, after)
        assert "/a" not in racks_of(before, moved.ensemble)
    assert "/a" not in racks_of(after, policy.new_ensemble(sizes, after).ensemble)


def test_with_one_of_three_racks_lost_the_other_two_share_every_write_set() -> None:
    candidates = cluster({"/b": 3, "/c": 3})
    placement = RackAwarePlacement(Random(1)).new_ensemble(QuorumSizes(4, 3, 2), candidates)
    assert placement.adherence is Adherence.STRICT
    assert sorted(racks_of(candidates, placement.ensemble)) == ["/b", "/b", "/c", "/c"]


# --- replacing --------------------------------------------------------------------------------------------------------


def test_a_bookie_is_replaced_from_its_own_rack_if_that_has_another() -> None:
    candidates = world([3, 3, 3, 3])
    policy = RackAwarePlacement(Random(5))
    sizes = QuorumSizes(3, 3, 2)
    for position in range(3):
        ensemble = policy.new_ensemble(sizes, candidates).ensemble
        replaced = policy.replace((position,), ensemble, sizes, candidates).ensemble
        assert racks_of(candidates, replaced) == racks_of(candidates, ensemble)


def test_a_replacement_comes_from_a_rack_that_the_write_sets_do_not_have_yet() -> None:
    candidates = cluster({"/a": 2, "/b": 2, "/c": 1, "/d": 1})
    ensemble = tuple(BookieId(name) for name in ("a-0", "b-0", "c-0"))
    replaced = RackAwarePlacement(Random(1)).replace((2,), ensemble, QuorumSizes(3, 3, 2), candidates)
    assert replaced.ensemble[2] == "d-0"


def test_a_degraded_ensemble_is_mended_by_the_next_replacement() -> None:
    candidates = cluster({"/a": 4, "/b": 1})
    ensemble = tuple(BookieId(name) for name in ("a-0", "a-1"))
    replaced = RackAwarePlacement(Random(1)).replace((1,), ensemble, QuorumSizes(2, 2, 2), candidates)
    assert replaced.ensemble[1] == "b-0"
    assert replaced.adherence is Adherence.STRICT


@given(
    st.lists(st.sampled_from(NAMES), min_size=2, max_size=5),
    st.lists(st.integers(0, 2), min_size=4, max_size=4),
    st.data(),
)
def test_a_replacement_serves_the_write_sets_as_well_as_any_spare_bookie_could(
    racks: list[str], spares: list[int], data: st.DataObject
) -> None:
    """Where some spare bookie keeps the rule for all write sets of the position, the chosen one does."""
    write = data.draw(st.integers(2, len(racks)))
    sizes = QuorumSizes(len(racks), write, write)
    position = data.draw(st.integers(0, len(racks) - 1))
    used = {rack: racks.count(rack) for rack in NAMES}
    candidates = cluster({rack: used[rack] + spare for rack, spare in zip(NAMES, spares, strict=True)})
    seen = dict.fromkeys(NAMES, 0)
    ensemble = []
    for rack in racks:
        ensemble.append(BookieId(f"{rack[1:]}-{seen[rack]}"))
        seen[rack] += 1
    options = [rack for rack, spare in zip(NAMES, spares, strict=True) if spare]
    if not options:
        return
    replaced = RackAwarePlacement(Random(0)).replace((position,), ensemble, sizes, candidates)

    def is_kept(rack: str) -> bool:
        labels = [*racks[:position], rack, *racks[position + 1 :]]
        return all(
            len({labels[(position - back + s) % len(labels)] for s in range(write)}) >= 2 for back in range(write)
        )

    chosen = candidates.topology.rack_of(replaced.ensemble[position])
    assert is_kept(chosen) or not any(is_kept(rack) for rack in options)


def test_an_enforced_rule_holds_for_replacements_too() -> None:
    policy = RackAwarePlacement(Random(1), enforced=True)
    ensemble = tuple(BookieId(name) for name in ("a-0", "b-0"))
    with pytest.raises(NotEnoughBookiesError, match="2 known racks"):
        policy.replace((1,), ensemble, QuorumSizes(2, 2, 2), cluster({"/a": 3, "/b": 1}))


def test_an_enforced_rule_that_the_others_break_already_is_not_lowered_for_a_replacement() -> None:
    policy = RackAwarePlacement(Random(1), min_racks=3, enforced=True)
    ensemble = tuple(BookieId(name) for name in ("a-0", "a-1", "b-0"))
    with pytest.raises(NotEnoughBookiesError, match="3 known racks"):
        policy.replace((2,), ensemble, QuorumSizes(3, 3, 2), cluster({"/a": 2, "/b": 2, "/c": 1}))


def test_a_write_set_that_cannot_be_good_does_not_spoil_the_choice_for_the_others() -> None:
    """Entry 0 has rack /a twice, with any bookie; entry 2 gets three racks only from /d, not from the lost one."""
    candidates = cluster({"/a": 2, "/b": 1, "/c": 3, "/d": 1})
    ensemble = tuple(BookieId(name) for name in ("a-0", "a-1", "c-1", "b-0", "c-0"))
    replaced = RackAwarePlacement(Random(1)).replace((2,), ensemble, QuorumSizes(5, 3, 2), candidates)
    assert replaced.ensemble[2] == "d-0"


def test_several_bookies_replaced_at_once_may_change_places_between_racks() -> None:
    """One by one, the rack of the second would stand in the way of the first."""
    candidates = cluster({"/a": 2, "/b": 2, "/c": 1})
    ensemble = tuple(BookieId(name) for name in ("a-0", "b-0", "x-0"))
    replaced = RackAwarePlacement(Random(1)).replace((1, 2), ensemble, QuorumSizes(3, 3, 2), candidates)
    assert sorted(racks_of(candidates, replaced.ensemble)) == ["/a", "/b", "/c"]


# --- limits -----------------------------------------------------------------------------------------------------------


def test_a_large_ensemble_is_placed_within_the_limit_of_the_search() -> None:
    candidates = cluster({f"/r{number}": 12 for number in range(30)})
    placement = RackAwarePlacement(Random(1)).new_ensemble(QuorumSizes(255, 7, 4), candidates)
    assert placement.adherence is Adherence.STRICT


@pytest.mark.parametrize(("counts", "size"), list(product([(9, 1), (8, 2, 1), (20, 1, 1, 1)], [9, 10])))
def test_lopsided_racks_are_placed_as_well_as_may_be(counts: tuple[int, ...], size: int) -> None:
    candidates = world(list(counts))
    placement = RackAwarePlacement(Random(1)).new_ensemble(QuorumSizes(size, 3, 2), candidates)
    assert len(set(placement.ensemble)) == size
