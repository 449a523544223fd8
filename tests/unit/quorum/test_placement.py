"""What every policy promises, whatever the cluster looks like; and the messages when it cannot be kept."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.errors import NotEnoughBookiesError
from magnetar.ids import BookieId
from magnetar.quorum.candidates import Candidates
from magnetar.quorum.placement import Adherence, PlacementPolicy, RandomPlacement
from magnetar.quorum.rack_aware import RackAwarePlacement, RegionAwarePlacement
from magnetar.quorum.sizes import QuorumSizes
from tests.unit.quorum.worlds import cluster

RACKS = ("/eu/r1", "/eu/r2", "/us/r1", "/us/r2", "/ap/r1", "")
POLICIES: list[Callable[[Random], PlacementPolicy]] = [RandomPlacement, RackAwarePlacement, RegionAwarePlacement]

policies = st.builds(lambda policy, seed: policy(Random(seed)), st.sampled_from(POLICIES), st.integers(0, 2**32))


@st.composite
def quorum_sizes(draw: st.DrawFn, ensemble_max: int = 6) -> QuorumSizes:
    ensemble = draw(st.integers(1, ensemble_max))
    write = draw(st.integers(1, ensemble))
    return QuorumSizes(ensemble, write, draw(st.integers(1, write)))


@st.composite
def clusters(draw: st.DrawFn) -> Candidates:
    counts = {rack: draw(st.integers(0, 3)) for rack in draw(st.sets(st.sampled_from(RACKS), min_size=1))}
    names = cluster(counts).writable
    some = st.lists(st.sampled_from(names), max_size=4) if names else st.just([])
    free = st.dictionaries(st.sampled_from(names), st.integers(0, 10**13)) if names else st.just({})
    return cluster(counts, read_only=draw(some), quarantined=draw(some), free_bytes=draw(free))


def excluded_of(data: st.DataObject, candidates: Candidates) -> frozenset[BookieId]:
    if not candidates.writable:
        return frozenset()
    return frozenset(data.draw(st.lists(st.sampled_from(candidates.writable), max_size=3)))


# --- new ensembles ----------------------------------------------------------------------------------------------------


@given(policies, quorum_sizes(), clusters(), st.data())
def test_an_ensemble_has_different_writable_bookies_or_there_were_too_few(
    policy: PlacementPolicy, sizes: QuorumSizes, candidates: Candidates, data: st.DataObject
) -> None:
    exclude = excluded_of(data, candidates)
    usable = [bookie for bookie in candidates.writable if bookie not in exclude]
    if len(usable) < sizes.ensemble:
        with pytest.raises(NotEnoughBookiesError):
            policy.new_ensemble(sizes, candidates, exclude=exclude)
        return
    ensemble = policy.new_ensemble(sizes, candidates, exclude=exclude).ensemble
    assert len(set(ensemble)) == len(ensemble) == sizes.ensemble
    assert set(ensemble) <= set(usable)


@given(policies, quorum_sizes(), clusters())
def test_quarantined_bookies_fill_only_what_others_cannot_and_are_named(
    policy: PlacementPolicy, sizes: QuorumSizes, candidates: Candidates
) -> None:
    healthy = len(candidates.writable) - len(candidates.quarantined)
    try:
        placement = policy.new_ensemble(sizes, candidates)
    except NotEnoughBookiesError:
        return
    used = [bookie for bookie in placement.ensemble if bookie in candidates.quarantined]
    assert list(placement.quarantined) == used
    assert len(used) == max(0, sizes.ensemble - healthy)


# --- replacing --------------------------------------------------------------------------------------------------------


@given(policies, quorum_sizes(), clusters(), st.data())
def test_a_replacement_is_new_allowed_and_leaves_the_others_where_they_are(
    policy: PlacementPolicy, sizes: QuorumSizes, candidates: Candidates, data: st.DataObject
) -> None:
    try:
        ensemble = policy.new_ensemble(sizes, candidates).ensemble
    except NotEnoughBookiesError:
        return
    positions = data.draw(st.sets(st.integers(0, sizes.ensemble - 1), min_size=1))
    exclude = excluded_of(data, candidates)
    spare = [bookie for bookie in candidates.writable if bookie not in exclude and bookie not in ensemble]
    if len(spare) < len(positions):
        with pytest.raises(NotEnoughBookiesError):
            policy.replace(positions, ensemble, sizes, candidates, exclude=exclude)
        return
    replaced = policy.replace(positions, ensemble, sizes, candidates, exclude=exclude)
    assert len(set(replaced.ensemble)) == sizes.ensemble
    for position, (old, new) in enumerate(zip(ensemble, replaced.ensemble, strict=True)):
        assert new in spare if position in positions else new == old
    fresh = set(replaced.ensemble) - set(ensemble)
    assert set(replaced.quarantined) == fresh & candidates.quarantined


def test_one_bookie_is_replaced_by_position() -> None:
    candidates = cluster({"/a": 2, "/b": 2})
    ensemble = (BookieId("a-0"), BookieId("b-0"))
    placement = RackAwarePlacement(Random(1)).replace((1,), ensemble, QuorumSizes(2, 2, 2), candidates)
    assert placement.ensemble == ("a-0", "b-1")


@given(policies, clusters(), quorum_sizes(3))
def test_bookies_that_are_gone_can_stand_in_an_ensemble_and_be_replaced(
    policy: PlacementPolicy, candidates: Candidates, sizes: QuorumSizes
) -> None:
    gone = tuple(BookieId(f"gone-{number}") for number in range(sizes.ensemble))
    if candidates.writable:
        placement = policy.replace((0,), gone, sizes, candidates)
        assert placement.ensemble[1:] == gone[1:]
        assert placement.ensemble[0] in candidates.writable


# --- determinism ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_random_numbers_give_the_same_ensembles(policy: Callable[[Random], PlacementPolicy]) -> None:
    candidates = cluster({"/eu/r1": 4, "/eu/r2": 4, "/us/r1": 4})
    sizes = QuorumSizes(5, 3, 2)
    first, second = policy(Random("x")), policy(Random("x"))
    assert [first.new_ensemble(sizes, candidates) for _ in range(20)] == [
        second.new_ensemble(sizes, candidates) for _ in range(20)
    ]


@pytest.mark.parametrize("policy", POLICIES)
def test_all_bookies_get_their_turn(policy: Callable[[Random], PlacementPolicy]) -> None:
    candidates = cluster({"/eu/r1": 4, "/eu/r2": 4, "/us/r1": 4})
    chooser = policy(Random(7))
    seen = {b for _ in range(100) for b in chooser.new_ensemble(QuorumSizes(3, 3, 2), candidates).ensemble}
    assert seen == set(candidates.writable)


# --- free disk --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [RandomPlacement, RackAwarePlacement, RegionAwarePlacement])
def test_bookies_with_more_free_disk_are_preferred_up_to_the_cap(policy: Callable[..., PlacementPolicy]) -> None:
    free = {BookieId(f"a-{number}"): 1_000 for number in range(5)}
    free[BookieId("a-0")] = 10**12
    candidates = cluster({"/a": 5}, free_bytes=free)
    chooser = policy(Random(3), disk_weight_max_multiple=4)
    chosen = [chooser.new_ensemble(QuorumSizes(1, 1, 1), candidates).ensemble[0] for _ in range(2_000)]
    assert 900 < chosen.count(BookieId("a-0")) < 1_100  # 4 of 8 parts, not all of them.


def test_without_disk_weight_free_disk_does_not_matter() -> None:
    free = {BookieId("a-0"): 10**12, BookieId("a-1"): 1}
    chooser = RandomPlacement(Random(3))
    candidates = cluster({"/a": 2}, free_bytes=free)
    chosen = [chooser.new_ensemble(QuorumSizes(1, 1, 1), candidates).ensemble[0] for _ in range(1_000)]
    assert 400 < chosen.count(BookieId("a-0")) < 600


# --- what is said -----------------------------------------------------------------------------------------------------


def test_too_few_bookies_are_reported_with_needed_known_writable_and_quarantined() -> None:
    candidates = cluster({"/a": 4}, read_only=["a-0", "x-0"], quarantined=["a-1"])
    with pytest.raises(NotEnoughBookiesError) as caught:
        RandomPlacement(Random(1)).new_ensemble(QuorumSizes(5, 3, 2), candidates, exclude=[BookieId("a-3")])
    error = caught.value
    assert (error.needed, error.known, error.writable, error.quarantined, error.excluded) == (5, 5, 3, 1, 1)
    assert "5 needed, 5 known, 3 writable, 1 quarantined, 1 excluded" in str(error)
    assert "start more bookies" in str(error)
    assert error.retryable


def test_an_enforced_rule_that_cannot_be_kept_is_named() -> None:
    policy = RackAwarePlacement(Random(1), min_racks=2, enforced=True)
    with pytest.raises(NotEnoughBookiesError, match="every write set spans 2 known racks"):
        policy.new_ensemble(QuorumSizes(3, 2, 2), cluster({"/a": 5}))


def test_a_random_ensemble_breaks_no_rule() -> None:
    placement = RandomPlacement(Random(1)).new_ensemble(QuorumSizes(3, 3, 2), cluster({"/a": 3}))
    assert placement.adherence is Adherence.STRICT


def test_a_bookie_is_a_candidate_in_one_way() -> None:
    candidates = cluster({"/a": 3}, read_only=["a-0", "x-0"], quarantined=["a-0", "a-1", "gone-0"])
    assert candidates.writable == ("a-1", "a-2")  # a-0 is still registered as writable, and becomes read-only.
    assert candidates.read_only == ("a-0", "x-0")
    assert candidates.quarantined == {"a-1"}
