"""Numbers as people read them: counts with separators, durations with the unit that fits, times in UTC."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

NOTHING: Final = "–"
_MINUTE_MS: Final = 60_000.0


def count(value: int) -> str:
    return f"{value:,}"


def short_count(value: float) -> str:
    """For the ticks of an axis."""
    for limit, unit in ((1_000_000_000, " G"), (1_000_000, " M"), (1_000, " k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def duration(milliseconds: float | None) -> str:
    """Three figures are enough to compare."""
    if milliseconds is None:
        return NOTHING
    if abs(milliseconds) < 1_000:
        return f"{milliseconds:.3g} ms" if abs(milliseconds) < 999.5 else "1 s"
    if milliseconds < _MINUTE_MS:
        return f"{milliseconds / 1_000:.3g} s"
    minutes, rest = divmod(round(milliseconds / 1_000), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def elapsed(seconds: float) -> str:
    """For the ticks of the time axis, counted from the beginning of the run."""
    if seconds < 120:
        return f"{seconds:g} s"
    if seconds < 7_200:
        return f"{seconds / 60:g} min"
    return f"{seconds / 3_600:g} h"


def clock(microseconds: int | None) -> str:
    """12:34:56.789"""
    if microseconds is None:
        return NOTHING
    return _moment(microseconds).strftime("%H:%M:%S.%f")[:-3]


def date_and_clock(microseconds: int) -> str:
    return _moment(microseconds).strftime("%Y-%m-%d %H:%M:%S UTC")


def _moment(microseconds: int) -> datetime:
    return datetime.fromtimestamp(microseconds // 1_000_000, UTC).replace(microsecond=microseconds % 1_000_000)
