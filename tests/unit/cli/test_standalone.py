"""What `magnetar standalone` configures by itself."""

from __future__ import annotations

import pytest

from magnetar.cli.options import load_effective
from magnetar.cli.serve import for_one_bookie, for_trying


@pytest.mark.parametrize(("settings", "deletes"), [([], False), (["broker.inactive_topics_delete=true"], True)])
def test_topics_that_are_not_used_are_kept_unless_the_user_says_otherwise(settings: list[str], deletes: bool) -> None:
    effective = load_effective(settings=settings, environment={})
    assert for_trying(effective).broker.inactive_topics_delete is deletes


def test_quorums_are_those_of_one_bookie_unless_the_user_says_otherwise() -> None:
    effective = load_effective(environment={})
    assert for_one_bookie(effective.config, effective).topic.write_quorum == 1
    chosen = load_effective(settings=["topic.write_quorum=2"], environment={})
    assert for_one_bookie(chosen.config, chosen).topic.write_quorum == 2
