from __future__ import annotations

from collections.abc import Sequence
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.cluster.placement import (
    BalanceLimits,
    Balancer,
    BrokerLoad,
    BundleLoad,
    Change,
    Merge,
    Move,
    Split,
    choose,
    misplaced,
)
from magnetar.broker.resources.bundles import Bundles, NamespaceBundle
from magnetar.names import NamespaceName

LIMITS = BalanceLimits(
    excess_begin=0.25,
    excess_end=0.1,
    weight_min=10,
    rest_s=600,
    topics_max=1_000,
    sessions_max=1_000,
    messages_per_s_max=30_000,
    bytes_per_s_max=100 * 2**20,
    bundles_max=128,
    moves=True,
    splits=True,
    merges=True,
)


def bundles(count: int, namespace: str = "t/one") -> list[NamespaceBundle]:
    name = NamespaceName.parse(namespace)
    return [NamespaceBundle(name, bundle) for bundle in Bundles.equal(count).all()]


def broker(loads: dict[NamespaceBundle, float], usage: float = 0.1) -> BrokerLoad:
    return BrokerLoad(usage, {bundle: BundleLoad(rate, topics=2) for bundle, rate in loads.items()})


def anywhere(brokers: dict[str, BrokerLoad]) -> Sequence[str]:
    return sorted(brokers)


def decide(balancer: Balancer, brokers: dict[str, BrokerLoad], now_s: float = 0.0, count: int = 4) -> list[Change]:
    return balancer.decide(brokers, lambda _bundle: anywhere(brokers), lambda _name: (count, 4), now_s)


# --- choosing ---------------------------------------------------------------------------------------------------------


def test_a_bundle_goes_to_the_broker_with_the_smallest_load() -> None:
    one, two = bundles(2)
    brokers = {"a": broker({one: 500.0}), "b": broker({two: 100.0})}
    assert choose(["a", "b"], brokers, {}, Random(1)) == "b"


def test_bundles_that_were_promised_since_the_last_report_count() -> None:
    one, two = bundles(2)
    brokers = {"a": broker({one: 500.0}), "b": broker({two: 100.0})}
    assert choose(["a", "b"], brokers, {"b": broker({one: 450.0})}, Random(1)) == "a"


def test_idle_bundles_are_spread_by_their_number() -> None:
    one, two, three, _ = bundles(4)
    brokers = {"a": broker({one: 0.0, two: 0.0}), "b": broker({three: 0.0})}
    assert choose(["a", "b"], brokers, {}, Random(1)) == "b"


def test_an_overloaded_broker_gets_a_bundle_only_if_no_other_can() -> None:
    (one,) = bundles(1)
    brokers = {"a": broker({}, usage=0.9), "b": broker({one: 500.0})}
    assert choose(["a", "b"], brokers, {}, Random(1)) == "b"
    assert choose(["a"], brokers, {}, Random(1)) == "a"


def test_a_broker_that_has_not_reported_yet_has_no_load() -> None:
    (one,) = bundles(1)
    assert choose(["a", "new"], {"a": broker({one: 1.0})}, {}, Random(1)) == "new"


def test_no_broker_is_chosen_when_none_is_allowed() -> None:
    assert choose([], {"a": broker({})}, {}, Random(1)) is None


# --- moving -----------------------------------------------------------------------------------------------------------


def test_a_broker_above_its_share_gives_the_bundle_that_evens_out_the_most() -> None:
    one, two, three, _ = bundles(4)
    brokers = {"a": broker({one: 600.0, two: 300.0, three: 100.0}), "b": broker({})}
    assert decide(Balancer(LIMITS), brokers) == [Move(one, "a", "b", "a has a load of 1000, and b of 0")]


def test_a_sole_bundle_that_would_only_swap_the_roles_stays() -> None:
    one, _ = bundles(2)
    assert decide(Balancer(LIMITS), {"a": broker({one: 1_000.0}), "b": broker({})}) == []


def test_small_differences_move_nothing() -> None:
    one, two, three, _ = bundles(4)
    assert decide(Balancer(LIMITS), {"a": broker({one: 6.0, two: 5.0}), "b": broker({three: 2.0})}) == []


def test_a_bundle_that_has_moved_stays_for_a_while() -> None:
    one, two, three, _ = bundles(4)
    balancer = Balancer(LIMITS)
    brokers = {"a": broker({one: 400.0, two: 350.0, three: 350.0}), "b": broker({})}
    (first,) = decide(balancer, brokers)
    assert isinstance(first, Move)
    (second,) = decide(balancer, brokers, now_s=599.0)
    assert isinstance(second, Move)
    assert second.bundle != first.bundle
    (third,) = decide(balancer, brokers, now_s=601.0)
    assert isinstance(third, Move)
    assert third.bundle == first.bundle


def test_nothing_moves_to_a_broker_that_may_not_serve_it() -> None:
    one, two, *_ = bundles(4)
    brokers = {"a": broker({one: 500.0, two: 500.0}), "b": broker({})}
    assert Balancer(LIMITS).decide(brokers, lambda _bundle: ["a"], lambda _name: (4, 4), 0.0) == []


@given(
    st.lists(st.lists(st.floats(0, 1e4), max_size=8), min_size=2, max_size=5),
    st.integers(0, 2**32),
)
def test_rounds_end_and_never_make_the_largest_load_larger(loads: list[list[float]], seed: int) -> None:
    """Bundles rest for no time at all, so that only the rule itself keeps them from moving in circles."""
    spare = iter(bundles(sum(map(len, loads)) or 1, "t/many"))
    owned = {f"b{n}": {next(spare): rate for rate in rates} for n, rates in enumerate(loads)}
    balancer = Balancer(BalanceLimits(**{name: getattr(LIMITS, name) for name in LIMITS.__slots__} | {"rest_s": 0.0}))
    heaviest = max(sum(each.values()) for each in owned.values())
    for now in range(1_000):
        brokers = {name: broker(each) for name, each in owned.items()}
        moves = [each for each in decide(balancer, brokers, float(now), count=1_000) if isinstance(each, Move)]
        if not moves:
            break
        for move in moves:
            owned[move.destination][move.bundle] = owned[move.source].pop(move.bundle)
        after = max(sum(each.values()) for each in owned.values())
        assert after <= heaviest * (1 + 1e-9)
        heaviest = after
    else:
        raise AssertionError("a thousand rounds have not come to an end")


# --- rules ------------------------------------------------------------------------------------------------------------


def test_bundles_that_a_broker_may_not_serve_go_to_the_smallest_loads_and_then_the_fewest_bundles() -> None:
    one, two, three, four = bundles(4)
    brokers = {"a": broker({one: 0.0, two: 0.0, three: 30.0}), "b": broker({four: 10.0}), "c": broker({})}
    moves = misplaced(brokers, lambda bundle, owner: owner == "a", lambda _bundle: ["b", "c"])
    assert [(move.bundle, move.destination) for move in moves] == [(one, "c"), (two, "c"), (three, "c")]
    assert misplaced(brokers, lambda _bundle, _owner: True, lambda _bundle: ["a"])[0].bundle == four
    idle = {"a": broker({one: 0.0, two: 0.0}), "b": broker({}), "c": broker({})}
    spread = misplaced(idle, lambda bundle, owner: owner == "a", lambda _bundle: ["b", "c"])
    assert [move.destination for move in spread] == ["b", "c"]


def test_bundles_without_another_broker_stay_where_they_are() -> None:
    (one,) = bundles(1)
    assert misplaced({"a": broker({one: 1.0})}, lambda _bundle, _owner: True, lambda _bundle: ["a", "gone"]) == []


def test_a_rule_moves_a_limited_number_of_bundles_in_a_round() -> None:
    many = dict.fromkeys(bundles(300), 1.0)
    moves = misplaced({"a": broker(many), "b": broker({})}, lambda _bundle, _owner: True, lambda _bundle: ["b"])
    assert len(moves) == 100


# --- splitting and merging --------------------------------------------------------------------------------------------


def split_of(load: BundleLoad, count: int = 4) -> list[Change]:
    (one, *_) = bundles(4)
    return decide(Balancer(LIMITS), {"a": BrokerLoad(0.1, {one: load})}, count=count)


def test_a_bundle_beyond_a_limit_is_split_and_the_limit_named() -> None:
    for load, why in (
        (BundleLoad(topics=1_001), "1,001 topics, 1,000 allowed"),
        (BundleLoad(topics=2, sessions=1_001), "1,001 producers and consumers, 1,000 allowed"),
        (BundleLoad(40_000, topics=2), "40000 messages/s, 30000 allowed"),
        (BundleLoad(0, 2**30, topics=2), "1073741824 bytes/s, 104857600 allowed"),
    ):
        (split,) = split_of(load)
        assert isinstance(split, Split)
        assert (split.owner, split.why) == ("a", why)


def test_a_bundle_with_one_topic_is_not_split() -> None:
    assert split_of(BundleLoad(40_000, topics=1)) == []


def test_a_namespace_with_the_greatest_number_of_bundles_is_not_split() -> None:
    assert split_of(BundleLoad(topics=1_001), count=128) == []


def test_idle_neighbours_merge_until_the_namespace_has_as_many_bundles_as_at_first() -> None:
    one, two, _three, _four = bundles(4)
    brokers = {"a": broker({one: 1.0, two: 2.0})}
    (merge,) = decide(Balancer(LIMITS), brokers, count=5)
    assert merge == Merge(one, two, "a")
    assert decide(Balancer(LIMITS), brokers, count=4) == []


def test_bundles_that_are_not_neighbours_do_not_merge() -> None:
    one, _two, three, _four = bundles(4)
    assert decide(Balancer(LIMITS), {"a": broker({one: 1.0, three: 2.0})}, count=5) == []


def test_neighbours_that_would_soon_be_split_again_do_not_merge() -> None:
    one, two, *_ = bundles(4)
    busy = BundleLoad(2_000, topics=2)
    assert decide(Balancer(LIMITS), {"a": BrokerLoad(0.1, {one: busy, two: busy})}, count=5) == []
