"""Regions: spread over them, racks within them, and a region lost."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.errors import NotEnoughBookiesError
from magnetar.ids import BookieId
from magnetar.quorum.candidates import Candidates
from magnetar.quorum.placement import Adherence
from magnetar.quorum.rack_aware import RegionAwarePlacement
from magnetar.quorum.sizes import QuorumSizes
from tests.unit.quorum.worlds import cluster

TWO_BY_TWO = {"/eu/r1": 3, "/eu/r2": 3, "/us/r1": 3, "/us/r2": 3}
THREE = {**TWO_BY_TWO, "/ap/r1": 3, "/ap/r2": 3}
seeds = st.integers(0, 2**32)
full_sizes = st.integers(1, 6).map(lambda size: QuorumSizes(size, size, size))


def regions_of(candidates: Candidates, ensemble: tuple[BookieId, ...]) -> list[str]:
    return [candidates.topology.region_of(bookie) for bookie in ensemble]


@given(full_sizes, seeds)
def test_regions_are_used_alike(sizes: QuorumSizes, seed: int) -> None:
    candidates = cluster(THREE)
    ensemble = RegionAwarePlacement(Random(seed)).new_ensemble(sizes, candidates).ensemble
    counts = Counter({"eu": 0, "us": 0, "ap": 0})
    counts.update(regions_of(candidates, ensemble))
    assert max(counts.values()) - min(counts.values()) <= 1


@given(full_sizes, seeds)
def test_within_a_region_racks_are_used_alike(sizes: QuorumSizes, seed: int) -> None:
    candidates = cluster(THREE)
    ensemble = RegionAwarePlacement(Random(seed)).new_ensemble(sizes, candidates).ensemble
    racks = Counter(candidates.topology.rack_of(bookie) for bookie in ensemble)
    for region in ("eu", "us", "ap"):
        assert abs(racks[f"/{region}/r1"] - racks[f"/{region}/r2"]) <= 1


@given(st.integers(2, 6), seeds)
def test_every_write_set_reaches_two_regions_where_the_circle_allows_it(size: int, seed: int) -> None:
    for write in range(2, size + 1):
        sizes = QuorumSizes(size, write, write)
        placement = RegionAwarePlacement(Random(seed)).new_ensemble(sizes, cluster(TWO_BY_TWO))
        odd_circle_of_two = write == 2 and size % 2 == 1  # Two labels cannot alternate around an odd circle.
        assert placement.adherence is (Adherence.SOFT if odd_circle_of_two else Adherence.STRICT)


def test_with_a_region_lost_the_rest_is_placed_by_racks() -> None:
    candidates = cluster({"/eu/r1": 3, "/eu/r2": 3})
    placement = RegionAwarePlacement(Random(1)).new_ensemble(QuorumSizes(4, 2, 2), candidates)
    assert placement.adherence is Adherence.SOFT
    racks = [candidates.topology.rack_of(bookie) for bookie in placement.ensemble]
    assert sorted(racks) == ["/eu/r1", "/eu/r1", "/eu/r2", "/eu/r2"]


def test_a_lost_region_does_not_stop_writing_even_if_racks_are_enforced() -> None:
    policy = RegionAwarePlacement(Random(1), enforced=True)
    candidates = cluster({"/eu/r1": 3, "/eu/r2": 3})
    assert policy.new_ensemble(QuorumSizes(4, 2, 2), candidates).adherence is Adherence.SOFT


def test_the_rule_of_racks_can_be_enforced() -> None:
    policy = RegionAwarePlacement(Random(1), enforced=True, min_racks=3)
    with pytest.raises(NotEnoughBookiesError, match="spans 3 known racks"):
        policy.new_ensemble(QuorumSizes(3, 3, 2), cluster({"/eu/r1": 3, "/us/r1": 3}))


def test_a_region_with_too_few_bookies_gives_what_it_has() -> None:
    candidates = cluster({"/eu/r1": 1, "/us/r1": 3, "/us/r2": 3})
    ensemble = RegionAwarePlacement(Random(1)).new_ensemble(QuorumSizes(4, 4, 2), candidates).ensemble
    assert Counter(regions_of(candidates, ensemble)) == {"eu": 1, "us": 3}


def test_a_replacement_comes_from_the_same_rack_then_from_the_same_region() -> None:
    sizes = QuorumSizes(2, 2, 2)
    ensemble = (BookieId("eu.r1-0"), BookieId("us.r1-0"))
    policy = RegionAwarePlacement(Random(1))
    same_rack = policy.replace((1,), ensemble, sizes, cluster(THREE)).ensemble[1]
    assert same_rack in ("us.r1-1", "us.r1-2")
    small = cluster({"/eu/r1": 1, "/us/r1": 1, "/us/r2": 1, "/ap/r1": 5})
    assert policy.replace((1,), ensemble, sizes, small).ensemble[1] == "us.r2-0"


def test_a_replacement_leaves_its_region_rather_than_putting_all_copies_into_one() -> None:
    candidates = cluster({"/eu/r1": 2, "/eu/r2": 2, "/us/r1": 1, "/ap/r1": 1})
    ensemble = (BookieId("eu.r1-0"), BookieId("us.r1-0"))
    replaced = RegionAwarePlacement(Random(1)).replace((1,), ensemble, QuorumSizes(2, 2, 2), candidates)
    assert replaced.ensemble[1] == "ap.r1-0"


def test_the_rule_of_racks_goes_before_staying_in_the_region() -> None:
    candidates = cluster({"/eu/r1": 2, "/eu/r2": 1, "/us/r1": 2, "/us/r2": 1})
    ensemble = tuple(BookieId(name) for name in ("eu.r1-0", "us.r1-0", "eu.r2-0", "us.r1-1"))
    policy = RegionAwarePlacement(Random(1), min_racks=3)
    assert policy.replace((2,), ensemble, QuorumSizes(4, 4, 2), candidates).ensemble[2] == "us.r2-0"


@given(seeds)
def test_using_regions_alike_goes_before_using_racks_alike(seed: int) -> None:
    candidates = cluster({"/eu/r1": 2, "/eu/r2": 2, "/eu/r3": 2, "/eu/r4": 2, "/us/r1": 3})
    ensemble = RegionAwarePlacement(Random(seed)).new_ensemble(QuorumSizes(5, 1, 1), candidates).ensemble
    assert Counter(regions_of(candidates, ensemble)) == {"eu": 3, "us": 2}


def test_bookies_of_unknown_place_are_a_region_of_their_own() -> None:
    candidates = cluster({"": 2, "/eu/r1": 2})
    ensemble = RegionAwarePlacement(Random(1)).new_ensemble(QuorumSizes(2, 2, 2), candidates).ensemble
    assert sorted(regions_of(candidates, ensemble)) == ["default-region", "eu"]
