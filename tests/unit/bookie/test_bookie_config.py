"""Where a bookie listens and under which name it is known, as configured."""

from __future__ import annotations

from typing import Any

import pytest

from magnetar.config.bookie import BookieConfig
from magnetar.errors import ConfigError


@pytest.mark.parametrize(
    ("config", "listens_on", "reached_at"),
    [
        ({}, "127.0.0.1", "127.0.0.1"),
        ({"advertised_host": "bk1"}, "0.0.0.0", "bk1"),
        ({"listen_host": "10.0.0.7"}, "10.0.0.7", "10.0.0.7"),
        ({"listen_host": "10.0.0.7", "advertised_host": "bk1"}, "10.0.0.7", "bk1"),
        ({"listen_host": "::", "advertised_host": "bk1"}, "::", "bk1"),
        ({"listen_host": "::1", "bookie_id": "b1"}, "::1", "::1"),
    ],
)
def test_a_bookie_is_local_until_it_is_advertised(config: dict[str, Any], listens_on: str, reached_at: str) -> None:
    made = BookieConfig(**config)
    assert (made.listens_on, made.reached_at) == (listens_on, reached_at)


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"listen_host": "0.0.0.0"}, "set bookie.advertised_host"),
        ({"listen_host": "0.0.0.0", "bookie_id": "b1"}, "set bookie.advertised_host"),
        ({"listen_host": "::1"}, "has a colon"),
        ({"advertised_host": "bk 1"}, "is not a host name"),
        ({"bookie_id": "readonly"}, "bookie.bookie_id"),
        ({"bookie_id": "a/b"}, "bookie.bookie_id"),
        ({"dir": ""}, "bookie.dir is empty"),
        ({"ledger_dirs": "/a,,/b"}, "has an empty name between commas"),
    ],
)
def test_what_nobody_could_connect_to_or_find_is_refused(config: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        BookieConfig(**config)


def test_thousands_of_adds_of_one_client_are_within_every_default_limit() -> None:
    config = BookieConfig()
    assert min(config.adds_in_progress_max, config.pending_adds_per_writer_max) > 10_000


def test_by_default_one_writer_is_held_before_all_the_others_have_to_wait() -> None:
    config = BookieConfig()
    assert 2 * config.pending_adds_per_writer_max < config.adds_in_progress_max


def test_a_slow_reader_is_refused_by_default_before_others_have_to_wait_for_it() -> None:
    config = BookieConfig()
    assert 2 * config.pending_reads_per_reader_max < config.reads_in_progress_max
