"""The kinds of seeds: worlds of ledgers, of topics, and of staging. Each has faults and a purpose of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from magnetar.sim.ledgers import options as ledger_options
from magnetar.sim.ledgers import report as ledger_report
from magnetar.sim.ledgers import run as ledger_run
from magnetar.sim.ledgers.report import Report
from magnetar.sim.staging import options as staging_options
from magnetar.sim.staging import run as staging_run
from magnetar.sim.topics import options as topic_options
from magnetar.sim.topics import run as topic_run


class Drawn(Protocol):
    def summary(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    faults: Mapping[str, str]
    """By the name that `--without` knows."""
    draw: Callable[..., Drawn]
    run_seed: Callable[..., Report]
    must_happen: tuple[str, ...]
    """Counters that are above zero over any batch worth its name."""


KINDS: Final[dict[str, Kind]] = {
    "ledgers": Kind(
        "ledgers", ledger_options.FAULTS, ledger_options.draw, ledger_run.run_seed, ledger_report.MUST_HAPPEN
    ),
    "topics": Kind("topics", topic_options.FAULTS, topic_options.draw, topic_run.run_seed, topic_run.MUST_HAPPEN),
    "staging": Kind(
        "staging", staging_options.FAULTS, staging_options.draw, staging_run.run_seed, staging_run.MUST_HAPPEN
    ),
}


def run(kind: str, seed: int, **options: Any) -> Report:
    """In any process: a kind is named, as it cannot be handed over."""
    return KINDS[kind].run_seed(seed, **options)
