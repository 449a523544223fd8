"""The plots of the report: messages over time, latency over time, the distribution of latency, and outages.

Format:    time is counted from the first message; outages are bands in the background of plots over time. Latency is on
           logarithmic axes: half a millisecond and an outage of seconds are both visible.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from magnetar.spark.pipelines.audit.options import LOWEST_MS, bin_edges_ms
from magnetar.spark.pipelines.audit.result import Findings, Outage, Step
from magnetar.spark.pipelines.report.markup import Markup, clock, count, duration, elapsed, short_count
from magnetar.spark.pipelines.report.plot import (
    Linear,
    Logarithmic,
    Plot,
    Point,
    bar,
    decades,
    nice_top,
    ticks_of,
    time_ticks,
)

SERIES: Final = ("sent", "acknowledged", "received")
LANES_MAX: Final = 12  # Producers in the timeline of outages: those that waited longest.
_LANE_HEIGHT: Final = 26
_LANE_FRAME: Final = 60
_HALF_A_MESSAGE: Final = 0.5  # The axis of counts begins here, so that a bar for one message is visible.


def has_series(findings: Findings, series: str) -> bool:
    return any(step.series == series for step in findings.steps)


def has_latency(findings: Findings, series: str) -> bool:
    return any(bin_.series == series for bin_ in findings.bins)


def throughput(findings: Findings) -> Markup:
    """Draws the messages a second of each series."""
    plot = Plot(
        "throughput",
        "Messages a second over time",
        f"Sent, acknowledged and received, in steps of {duration(findings.step_us / 1000)}; "
        f"{len(findings.outages)} outages are marked.",
    )
    across = _time_axis(findings, plot)
    per_second = 1_000_000 / findings.step_us
    rates = {series: _filled(findings, series, per_second) for series in SERIES}
    top = nice_top(max((rate for points in rates.values() for _, rate in points), default=0.0))
    up = Linear(0.0, top, plot.bottom, plot.top)
    _outage_bands(findings, plot, across)
    plot.vertical_axis(ticks_of(up, up.ticks(4), short_count), "messages / s")
    for series in ("acknowledged", "sent", "received"):
        points = [(across(second), up(rate)) for second, rate in rates[series]]
        if series == "acknowledged":
            plot.area(points, series)
        plot.curve(points, series)
    _finish_time_axis(findings, plot, across)
    return plot.svg()


def latency_over_time(findings: Findings, series: str, words: str) -> Markup:
    """Draws the median, the 99th percentile and the longest of each step."""
    plot = Plot(
        f"latency-{series}", f"Latency over time, {words}", "Median, 99th percentile and longest of each step of time."
    )
    steps = [step for step in findings.steps if step.series == series and step.p50_ms is not None]
    values = [max(value, LOWEST_MS) for step in steps for value in (step.p50_ms, step.p99_ms, step.longest_ms) if value]
    up = Logarithmic(*decades(min(values, default=1.0), max(values, default=10.0)), plot.bottom, plot.top)
    across = _time_axis(findings, plot)
    _outage_bands(findings, plot, across)
    plot.vertical_axis(ticks_of(up, up.ticks(), duration), "latency")
    for name, field in (("longest", "longest_ms"), ("p99", "p99_ms"), ("p50", "p50_ms")):
        plot.curve(_with_gaps(findings, steps, field, across, up), name)
    _finish_time_axis(findings, plot, across)
    return plot.svg()


def histogram(findings: Findings, series: str, latency: str, words: str) -> Markup:
    found = [bin_ for bin_ in findings.bins if bin_.series == series]
    figures = findings.latency[latency]
    plot = Plot(
        f"histogram-{series}",
        f"Distribution of latency, {words}",
        f"{count(figures.count)} messages: half within {duration(figures.p50)}, 99 % within {duration(figures.p99)}, "
        f"the longest {duration(figures.longest)}.",
    )
    low, high = decades(bin_edges_ms(found[0].number)[0] * 1.001, bin_edges_ms(found[-1].number)[1])
    across = Logarithmic(low, high, plot.left, plot.right)
    most = max(bin_.count for bin_ in found)
    up = Logarithmic(_HALF_A_MESSAGE, max(10.0, most * 1.3), plot.bottom, plot.top)
    plot.vertical_axis(ticks_of(up, up.ticks(), short_count), "messages (log)")
    for bin_ in found:
        begin, end = bin_edges_ms(bin_.number)
        share = bin_.count / figures.count
        hint = f"{duration(begin)} to {duration(end)}: {count(bin_.count)} messages, {share:.2%}"
        x, y = across(begin), up(bin_.count)
        plot.add(bar(f"bar {series}", x + 1, y, across(end) - x - 2, plot.bottom - y, hint))
    for row, (name, value) in enumerate((("p50", figures.p50), ("p99", figures.p99), ("p99.9", figures.p999))):
        plot.marker(across(value), f"{name} {duration(value)}", row)
    plot.horizontal_axis(ticks_of(across, across.ticks(), duration), f"{words} (log)")
    return plot.svg()


def outage_timeline(findings: Findings) -> Markup:
    """Draws a lane per producer."""
    lanes = _lanes(findings.outages)
    plot = Plot(
        "outages",
        "Outages over time",
        f"{len(findings.outages)} times a producer waited long for an acknowledgement.",
        height=_LANE_HEIGHT * len(lanes) + _LANE_FRAME,
    )
    across = _time_axis(findings, plot)
    for number, (name, outages) in enumerate(lanes):
        y = plot.top + number * _LANE_HEIGHT
        plot.add(bar("lane", plot.left, y + 4, plot.right - plot.left, _LANE_HEIGHT - 8, name))
        for outage in outages:
            begin, end = (across(_seconds(findings, at)) for at in (outage.begin_us, _end(findings, outage)))
            plot.add(bar("outage", begin, y + 4, max(end - begin, 3.0), _LANE_HEIGHT - 8, _outage_words(outage)))
    _finish_time_axis(findings, plot, across)
    return plot.svg()


# --- parts ------------------------------------------------------------------------------------------------------------


def _seconds(findings: Findings, at_us: int) -> float:
    return (at_us - findings.first_us) / 1_000_000


def _time_axis(findings: Findings, plot: Plot) -> Linear:
    return Linear(0.0, max(_seconds(findings, findings.last_us), 0.001), plot.left, plot.right)


def _finish_time_axis(findings: Findings, plot: Plot, across: Linear) -> None:
    label = f"time since {clock(findings.first_us)} UTC"
    plot.horizontal_axis(ticks_of(across, time_ticks(across.high), elapsed), label)


def _outage_bands(findings: Findings, plot: Plot, across: Linear) -> None:
    for outage in findings.outages:
        begin, end = (across(_seconds(findings, at)) for at in (outage.begin_us, _end(findings, outage)))
        plot.band(begin, end, "band", _outage_words(outage))


def _end(findings: Findings, outage: Outage) -> int:
    return findings.last_us if outage.end_us is None else outage.end_us


def _outage_words(outage: Outage) -> str:
    until = "the end of the log" if outage.end_us is None else clock(outage.end_us)
    return (
        f"{outage.producer}: no acknowledgement for {duration(outage.duration_ms)}, {clock(outage.begin_us)} to {until}"
    )


def _middle(findings: Findings, begin_us: int) -> float:
    """Returns the middle of a step, where its point is drawn."""
    return _seconds(findings, begin_us + findings.step_us // 2)


def _begins(findings: Findings) -> range:
    """Returns the beginning of every step of the run, with or without messages."""
    first = findings.first_us - findings.first_us % findings.step_us
    return range(first, findings.last_us + 1, findings.step_us)


def _filled(findings: Findings, series: str, per_second: float) -> list[tuple[float, float]]:
    """Counts a step without a message as zero messages a second."""
    counts = {step.begin_us: step.count for step in findings.steps if step.series == series}
    if not counts:
        return []
    return [(_middle(findings, begin), counts.get(begin, 0) * per_second) for begin in _begins(findings)]


def _with_gaps(findings: Findings, steps: Sequence[Step], field: str, across: Linear, up: Logarithmic) -> list[Point]:
    """Leaves a gap for a step without a message, which has no latency."""
    values = {step.begin_us: getattr(step, field) for step in steps}
    points: list[Point] = []
    for begin in _begins(findings):
        value = values.get(begin)
        points.append((across(_middle(findings, begin)), None if value is None else up(max(value, LOWEST_MS))))
    return _visible(points)


def _visible(points: list[Point]) -> list[Point]:
    """Makes a lone point between two gaps a short line: otherwise it would not be drawn."""
    drawn: list[Point] = []
    for number, (x, y) in enumerate(points):
        before = points[number - 1][1] if number else None
        after = points[number + 1][1] if number + 1 < len(points) else None
        drawn.append((x, y))
        if y is not None and before is None and after is None:
            drawn.append((x + 2.0, y))
    return drawn


def _lanes(outages: Sequence[Outage]) -> list[tuple[str, list[Outage]]]:
    by_name: dict[str, list[Outage]] = {}
    for outage in outages:
        by_name.setdefault(f"{outage.producer} → {outage.topic.rpartition('/')[2]}", []).append(outage)
    longest = sorted(by_name.items(), key=lambda lane: (-sum(outage.duration_ms for outage in lane[1]), lane[0]))
    return longest[:LANES_MAX]
