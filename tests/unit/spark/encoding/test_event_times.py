"""Event times: in milliseconds since 1970, by the session's zone where they have none."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from magnetar.errors import SinkDataError
from magnetar.spark.encoding.layout import event_milliseconds

NAIVE = pa.timestamp("us")


def utc_ms(*parts: int) -> int:
    return round(datetime(*parts, tzinfo=UTC).timestamp() * 1000)  # type: ignore[misc,arg-type]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([None, -5]),
        pa.array([datetime(1969, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC")),
        pa.array([datetime(1970, 1, 1)], NAIVE),  # noqa: DTZ001 - six hours before 1970 in UTC
    ],
)
def test_a_time_before_1970_is_refused(column: pa.Array) -> None:
    with pytest.raises(SinkDataError, match=r"before 1970 .* null"):
        event_milliseconds(column, "Asia/Dhaka")


def test_times_with_a_zone_and_numbers_do_not_depend_on_the_sessions_zone() -> None:
    at = datetime(2026, 1, 31, 10, 0, 0, 1999, tzinfo=UTC)
    column = pa.array([at, None], pa.timestamp("us", "UTC"))
    assert event_milliseconds(column, "America/New_York").to_pylist() == [utc_ms(2026, 1, 31, 10) + 1, None]
    assert event_milliseconds(pa.array([0, 7, None]), "").to_pylist() == [0, 7, None]


def test_a_time_without_a_zone_is_one_of_the_session() -> None:
    column = pa.array([datetime(2026, 1, 31, 10), None, datetime(2026, 7, 1, 10)], NAIVE)  # noqa: DTZ001
    found = event_milliseconds(column, "America/New_York").to_pylist()
    assert found == [utc_ms(2026, 1, 31, 15), None, utc_ms(2026, 7, 1, 14)]
    assert event_milliseconds(column, "+02:00").to_pylist()[0] == utc_ms(2026, 1, 31, 8)


def test_a_time_that_is_skipped_or_repeated_by_the_clocks_is_what_sparks_cast_makes_of_it() -> None:
    skipped, repeated = datetime(2026, 3, 8, 2, 30), datetime(2026, 11, 1, 1, 30)  # noqa: DTZ001
    found = event_milliseconds(pa.array([skipped, None, repeated], NAIVE), "America/New_York").to_pylist()
    assert found == [utc_ms(2026, 3, 8, 7, 30), None, utc_ms(2026, 11, 1, 5, 30)]


def test_a_time_without_a_zone_is_refused_where_the_sessions_zone_is_not_known() -> None:
    column = pa.array([datetime(2026, 1, 31, 10)], NAIVE)  # noqa: DTZ001
    with pytest.raises(SinkDataError, match=r"CAST\(event_time AS TIMESTAMP\)"):
        event_milliseconds(column, "")
    with pytest.raises(SinkDataError, match="'Mars/Olympus' is not known"):
        event_milliseconds(column, "Mars/Olympus")
