"""The kinds of seeds: worlds of ledgers, of topics, of bundles, and of staging."""

from __future__ import annotations

from typing import Any, Final

from magnetar.sim.bundles.scenario import BUNDLES
from magnetar.sim.ledgers.scenario import LEDGERS
from magnetar.sim.run import Report, Scenario
from magnetar.sim.staging.scenario import STAGING
from magnetar.sim.topics.scenario import TOPICS

SCENARIOS: Final[dict[str, Scenario]] = {each.name: each for each in (LEDGERS, TOPICS, BUNDLES, STAGING)}


def run(kind: str, seed: int, **options: Any) -> Report:
    """In any process: a kind is named, as it cannot be handed over."""
    return SCENARIOS[kind].run(seed, **options)
