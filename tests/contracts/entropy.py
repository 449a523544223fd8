"""The contract of `Entropy`, for the real machine and for the simulator alike."""

from __future__ import annotations

from uuid import RFC_4122

import pytest

from magnetar.runtime.runtime import Entropy

_YEAR_2020_MS = 1_577_836_800_000
_YEAR_2200_MS = 7_258_118_400_000


class EntropyContract:
    @pytest.fixture
    def harness(self) -> Entropy:
        raise NotImplementedError("a subclass brings the implementation")

    async def test_identifiers_are_of_version_4_and_differ(self, harness: Entropy) -> None:
        identifiers = [harness.uuid() for _ in range(1_000)]
        assert len(set(identifiers)) == 1_000
        assert {(one.version, one.variant) for one in identifiers} == {(4, RFC_4122)}

    async def test_wall_clock_is_in_whole_milliseconds_of_this_era(self, harness: Entropy) -> None:
        now = harness.wall_ms()
        assert isinstance(now, int)
        assert _YEAR_2020_MS < now < _YEAR_2200_MS

    async def test_random_numbers_fill_their_range(self, harness: Entropy) -> None:
        drawn = [harness.random.random() for _ in range(1_000)]
        assert all(0.0 <= number < 1.0 for number in drawn)
        assert min(drawn) < 0.25
        assert max(drawn) > 0.75

    async def test_choices_and_ranges_reach_every_value(self, harness: Entropy) -> None:
        assert {harness.random.randrange(4) for _ in range(1_000)} == {0, 1, 2, 3}
        assert sorted(harness.random.sample(range(8), 8)) == list(range(8))
