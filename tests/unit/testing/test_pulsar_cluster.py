"""Mistakes in the use of a test's cluster are explained."""

from __future__ import annotations

import pytest

from magnetar.errors import ConfigError
from magnetar.testing.cluster import BookieCluster, cluster_config


@pytest.mark.parametrize("setting", ["frob", "frob.x=1", "bookie.port=frob", "bookie.port=-1"])
def test_a_wrong_setting_is_blamed_on_the_settings_of_the_cluster(setting: str) -> None:
    with pytest.raises(ConfigError) as caught:
        cluster_config(1, [setting])
    assert "magnetar_settings" in str(caught.value)
    assert "--set" not in str(caught.value)


@pytest.mark.parametrize("bookie", [99, -1, "127.0.0.1:1"])
async def test_a_bookie_that_does_not_exist_is_named_with_those_that_do(bookie: int | str) -> None:
    async with BookieCluster(2) as cluster:
        with pytest.raises(LookupError, match=r"no bookie .*: it has 0 \(.*\), 1 \("):
            await cluster.kill(bookie)
