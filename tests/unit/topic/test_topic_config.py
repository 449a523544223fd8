"""Settings of topics that do not fit together are refused with what to do."""

from __future__ import annotations

import pytest

from magnetar.config.root import Config
from magnetar.config.topic import TopicConfig
from magnetar.errors import ConfigError


def test_defaults_are_those_of_pulsar() -> None:
    config = Config().topic
    assert (config.ensemble_size, config.write_quorum, config.ack_quorum) == (2, 2, 2)
    assert (config.ledger_entries_max, config.ledger_bytes_max) == (50_000, 2 * 2**30)
    assert (config.ledger_minutes_min, config.ledger_minutes_max) == (10, 240)


@pytest.mark.parametrize(
    "settings",
    [
        {"ack_quorum": 3},
        {"write_quorum": 3},
        {"ensemble_size": 1},
        {"ledger_minutes_min": 300},
        {"ledger_entries_max": 0},
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        TopicConfig(**settings)  # type: ignore[arg-type]
