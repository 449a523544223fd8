from __future__ import annotations

from typing import Any

import pytest

from magnetar.broker.cluster.isolation import Isolation, IsolationPolicy
from magnetar.errors import InvalidPolicyError

BROKERS = ["a-1:8080", "a-2:8080", "b-1:8080", "c-1:8080"]


def policy(**changes: Any) -> dict[str, Any]:
    return {
        "namespaces": ["sales/.*"],
        "primary": ["a-.*"],
        "secondary": ["b-.*"],
        "auto_failover_policy": {"policy_type": "min_available", "parameters": {"min_limit": "1"}},
    } | changes


def isolation(**changes: Any) -> Isolation:
    return Isolation({"sales": IsolationPolicy.from_json(policy(**changes))}, {}, {})


def test_a_namespace_with_a_policy_is_served_by_its_primary_brokers() -> None:
    assert isolation().candidates("sales/eu", BROKERS, {}) == ["a-1:8080", "a-2:8080"]


def test_a_namespace_without_a_policy_is_served_by_brokers_that_are_not_primary_for_others() -> None:
    assert isolation().candidates("public/default", BROKERS, {}) == ["b-1:8080", "c-1:8080"]


def test_secondary_brokers_join_when_too_few_primary_ones_are_left() -> None:
    parameters = {"policy_type": "min_available", "parameters": {"min_limit": "2"}}
    rules = isolation(auto_failover_policy=parameters)
    assert rules.candidates("sales/eu", BROKERS, {}) == ["a-1:8080", "a-2:8080"]
    assert rules.candidates("sales/eu", BROKERS[1:], {}) == ["a-2:8080", "b-1:8080"]


def test_no_other_broker_serves_an_isolated_namespace_when_all_of_its_brokers_are_gone() -> None:
    assert isolation().candidates("sales/eu", ["c-1:8080"], {}) == []


def test_patterns_match_whole_names_only() -> None:
    rules = isolation(primary=["a"])
    assert rules.candidates("sales/eu", BROKERS, {}) == ["b-1:8080"]  # No primary one, so the secondary ones.
    assert isolation().policy_of("wholesales/eu") is None


def test_the_host_of_an_address_is_matched_without_the_port() -> None:
    rules = isolation(primary=[r"\[::1\]"], secondary=[])
    assert rules.candidates("sales/eu", ["[::1]:8080", "a-1:8080"], {}) == ["[::1]:8080"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"namespaces": []}, "needs `namespaces` and `primary`"),
        ({"primary": []}, "needs `namespaces` and `primary`"),
        ({"primary": ["a("]}, "is no regular expression"),
        ({"secondary": "b"}, "is a list of regular expressions"),
        ({"auto_failover_policy": {"policy_type": "magic"}}, "is 'min_available', not 'magic'"),
        ({"unload_scope": "some"}, "`unload_scope` of an isolation policy is all_matching, none, changed, not 'some'"),
        ({"auto_failover_policy": {"parameters": {"min_limit": "many"}}}, "is a number, not 'many'"),
    ],
)
def test_a_policy_that_cannot_be_followed_is_refused_with_the_field(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidPolicyError, match=message.replace("(", r"\(")):
        IsolationPolicy.from_json(policy(**changes))


# --- anti-affinity ----------------------------------------------------------------------------------------------------

GROUPS = {"t/one": "pair", "t/two": "pair", "t/three": "pair", "t/other": "another"}


def test_namespaces_of_a_group_go_to_brokers_that_serve_the_fewest_of_it() -> None:
    rules = Isolation({}, GROUPS, {})
    serves = {"a-1:8080": ["t/two", "t/other"], "a-2:8080": ["t/two", "t/three"], "b-1:8080": ["t/other"]}
    assert rules.candidates("t/one", BROKERS, serves) == ["b-1:8080", "c-1:8080"]
    assert rules.candidates("t/one", BROKERS[:2], serves) == ["a-1:8080"]


def test_other_bundles_of_the_namespace_itself_do_not_keep_it_away() -> None:
    assert Isolation({}, GROUPS, {}).candidates("t/one", BROKERS, {"a-1:8080": ["t/one"]}) == BROKERS


def test_a_group_uses_the_failure_domain_that_serves_the_fewest_of_it() -> None:
    domains = {"a-1:8080": "left", "a-2:8080": "left", "b-1:8080": "right"}
    rules = Isolation({}, GROUPS, domains)
    assert rules.candidates("t/one", BROKERS[:3], {"a-1:8080": ["t/two"]}) == ["b-1:8080"]
    both = {"a-1:8080": ["t/two"], "b-1:8080": ["t/three"]}
    assert rules.candidates("t/one", BROKERS[:3], both) == ["a-2:8080"]


def test_a_group_never_leaves_the_brokers_that_a_policy_allows() -> None:
    rules = Isolation({"sales": IsolationPolicy.from_json(policy(namespaces=["t/.*"]))}, GROUPS, {})
    assert rules.candidates("t/one", BROKERS, {"a-1:8080": ["t/two"], "a-2:8080": ["t/two"]}) == BROKERS[:2]
