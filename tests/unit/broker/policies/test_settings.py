from __future__ import annotations

import pytest

from magnetar.config.broker import BrokerConfig
from magnetar.config.defaults import STRATEGIES, SchemasConfig, TopicDefaultsConfig
from magnetar.errors import ConfigError
from magnetar.schemas.compatibility import CompatibilityStrategy


def test_subscription_types_are_a_list_of_known_names() -> None:
    assert TopicDefaultsConfig(subscription_types=" Shared , Failover,").allowed_subscription_types == (
        "Shared",
        "Failover",
    )


@pytest.mark.parametrize("types", ["", ",", "Shared,Common"])
def test_subscription_types_that_are_none_are_refused(types: str) -> None:
    with pytest.raises(ConfigError, match="subscription_types"):
        TopicDefaultsConfig(subscription_types=types)


def test_cluster_has_a_name() -> None:
    with pytest.raises(ConfigError, match="cluster"):
        BrokerConfig(cluster="")


def test_every_strategy_can_be_the_default() -> None:
    assert list(STRATEGIES) == [str(strategy) for strategy in CompatibilityStrategy]
    for strategy in STRATEGIES:
        SchemasConfig(compatibility=strategy)
    with pytest.raises(ConfigError, match="compatibility"):
        SchemasConfig(compatibility="UNDEFINED")
