from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.ledger.transports import TRANSPORTS, chosen


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> Iterator[str]:
    """The way to the bookies in the worlds of this test."""
    with chosen(request.param):
        yield request.param
