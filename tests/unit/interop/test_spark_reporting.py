"""Names of tests as the sentences that a report has."""

from __future__ import annotations

import pytest

from interop.spark.reporting import sentence


@pytest.mark.parametrize(
    ("nodeid", "expected"),
    [
        ("interop/spark/suite/test_sql.py::test_a_view_is_read", "a view is read"),
        ("a.py::test_both_roads[bookie-3]", "both roads [bookie-3]"),
    ],
)
def test_the_name_of_a_test_is_a_sentence(nodeid: str, expected: str) -> None:
    assert sentence(nodeid) == expected
