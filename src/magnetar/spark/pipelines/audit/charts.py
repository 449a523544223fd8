"""The plots of the report, as SVG: messages and latency over time, the distribution of latency, and outages.

Format:    time is counted from the first message; outages are bands in the background of plots over time. Latency is on
           logarithmic axes: half a millisecond and an outage of seconds are both visible. Colours come from style.css
           by class, so that plots follow the reader's light or dark scheme.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

from magnetar.spark.pipelines.audit.markup import (
    Markup,
    clock,
    count,
    duration,
    elapsed,
    element,
    joined,
    short_count,
    text,
)
from magnetar.spark.pipelines.audit.values import LOWEST_MS, Findings, Outage, Step, bin_edges_ms

Point = tuple[float, float | None]
"""Coordinates in pixels; without the second one the line has a gap."""


@dataclass(slots=True)
class Plot:
    """Parts are added from the back to the front; `svg` is the whole."""

    name: str
    """An id on the page, for the title and the description."""
    title: str
    description: str
    height: int = 260
    _parts: list[Markup] = field(default_factory=list)
    width: ClassVar[int] = 960
    left: ClassVar[float] = 72
    right: ClassVar[float] = 940
    top: ClassVar[float] = 14

    @property
    def bottom(self) -> float:
        return self.height - 46

    def add(self, *parts: Markup) -> None:
        self._parts.extend(parts)

    def horizontal_axis(self, ticks: Sequence[tuple[float, str]], label: str) -> None:
        for x, words in ticks:
            self.add(_line("tick", x, self.bottom, x, self.bottom + 5))
            self.add(_words("label", x, self.bottom + 19, words, "middle"))
        self.add(_line("axis", self.left, self.bottom, self.right, self.bottom))
        self.add(_words("axis-title", (self.left + self.right) / 2, self.height - 6, label, "middle"))

    def vertical_axis(self, ticks: Sequence[tuple[float, str]], label: str) -> None:
        """Takes ticks as (y, text); each has a line of the grid."""
        for y, words in ticks:
            self.add(_line("grid", self.left, y, self.right, y))
            self.add(_words("label", self.left - 8, y + 4, words, "end"))
        middle = (self.top + self.bottom) / 2
        turned = {
            "class": "axis-title",
            "text-anchor": "middle",
            "transform": f"translate(14 {middle:.0f}) rotate(-90)",
        }
        self.add(element("text", turned, text(label)))

    def band(self, begin: float, end: float, name: str, hint: str) -> None:
        """Draws a stretch of the horizontal axis, wide enough to be visible."""
        place = {
            "class": name,
            "x": begin,
            "y": self.top,
            "width": max(end - begin, 2.0),
            "height": self.bottom - self.top,
        }
        self.add(element("rect", place, element("title", None, text(hint))))

    def curve(self, points: Sequence[Point], name: str) -> None:
        self.add(element("path", {"class": f"curve {name}", "d": _path(points)}))

    def area(self, points: Sequence[tuple[float, float]], name: str) -> None:
        """Fills the area below a curve without gaps."""
        if points:
            outline = [(points[0][0], self.bottom), *points, (points[-1][0], self.bottom)]
            self.add(element("path", {"class": f"area {name}", "d": _path(outline) + "Z"}))

    def marker(self, x: float, words: str, row: int = 0) -> None:
        """Draws a vertical line with a word beside its top, on the side that has room."""
        is_left = x > (self.left + self.right) / 2
        place = x - 5 if is_left else x + 5
        self.add(_line("marker", x, self.top, x, self.bottom))
        self.add(_words("marker-label", place, self.top + 11 + 15 * row, words, "end" if is_left else "start"))

    def svg(self) -> Markup:
        about = {
            "viewBox": f"0 0 {self.width} {self.height}",
            "role": "img",
            "aria-labelledby": f"{self.name}-title {self.name}-description",
            "class": "plot",
            "id": self.name,
        }
        title = element("title", {"id": f"{self.name}-title"}, text(self.title))
        description = element("desc", {"id": f"{self.name}-description"}, text(self.description))
        return element("svg", about, title, description, joined(self._parts))


def ticks_of(
    scale: Callable[[float], float], values: Sequence[float], shown: Callable[[float], str]
) -> list[tuple[float, str]]:
    return [(scale(value), shown(value)) for value in values]


def bar(name: str, x: float, y: float, width: float, height: float, hint: str) -> Markup:
    place = {"class": name, "x": x, "y": y, "width": max(width, 1.0), "height": max(height, 0.0), "rx": 1.5}
    return element("rect", place, element("title", None, text(hint)))


def _path(points: Sequence[Point]) -> str:
    steps, pen_is_down = [], False
    for x, y in points:
        if y is not None:
            steps.append(f"{'L' if pen_is_down else 'M'}{x:.1f} {y:.1f}")
        pen_is_down = y is not None
    return "".join(steps)


def _line(name: str, x1: float, y1: float, x2: float, y2: float) -> Markup:
    return element("line", {"class": name, "x1": x1, "y1": y1, "x2": x2, "y2": y2})


def _words(name: str, x: float, y: float, words: str, anchor: str) -> Markup:
    return element("text", {"class": name, "x": x, "y": y, "text-anchor": anchor}, text(words))


_NICE: Final = (1.0, 2.0, 2.5, 5.0, 10.0)
_NICE_SECONDS: Final = (1, 2, 5, 10, 15, 30, *(60 * n for n in (1, 2, 5, 10, 15, 30, 60, 120, 240, 360, 720, 1_440)))


@dataclass(frozen=True, slots=True)
class Linear:
    """`low` is drawn at `begin`, `high` at `end`; end may be the smaller one, as for upward axes."""

    low: float
    high: float
    begin: float
    end: float

    def __call__(self, value: float) -> float:
        span = self.high - self.low or 1.0
        return self.begin + (min(max(value, self.low), self.high) - self.low) / span * (self.end - self.begin)

    def ticks(self, about: int = 5) -> list[float]:
        step = nice_step((self.high - self.low) / max(about, 1))
        first = math.ceil(self.low / step - 1e-9)
        return [number * step for number in range(first, math.floor(self.high / step + 1e-9) + 1)]


@dataclass(frozen=True, slots=True)
class Logarithmic:
    """A scale for latencies: powers of ten are equally far apart. `low` must be above zero."""

    low: float
    high: float
    begin: float
    end: float

    def __call__(self, value: float) -> float:
        span = math.log10(self.high / self.low) or 1.0
        part = math.log10(min(max(value, self.low), self.high) / self.low) / span
        return self.begin + part * (self.end - self.begin)

    def ticks(self) -> list[float]:
        """Returns the powers of ten; with the values between them where there are few."""
        first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
        factors = (1, 2, 5) if last - first < 2 else (1,)
        values = [factor * 10.0**power for power in range(first - 1, last + 1) for factor in factors]
        return [value for value in values if self.low * (1 - 1e-9) <= value <= self.high * (1 + 1e-9)]


def nice_step(shortest: float) -> float:
    """Returns the smallest round step that is not below `shortest`."""
    if shortest <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(shortest))
    return next(factor * power for factor in _NICE if factor * power >= shortest * (1 - 1e-9))


def nice_top(highest: float, about: int = 5) -> float:
    """Returns the end of an axis that begins at zero."""
    if highest <= 0:
        return 1.0
    step = nice_step(highest / about)
    return math.ceil(highest / step - 1e-9) * step


def time_ticks(seconds: float, about: int = 8) -> list[float]:
    """Returns ticks from zero to `seconds`: round on a clock."""
    shortest = seconds / max(about, 1)
    if shortest < _NICE_SECONDS[0]:
        return Linear(0.0, seconds, 0.0, 1.0).ticks(about)
    step = next((step for step in _NICE_SECONDS if step >= shortest), math.ceil(shortest / 86_400) * 86_400)
    return [float(number * step) for number in range(math.floor(seconds / step) + 1)]


def decades(lowest: float, highest: float) -> tuple[float, float]:
    """Returns the limits of a logarithmic axis that holds both, at round places."""
    low = 10.0 ** math.floor(math.log10(lowest))
    high = 10.0 ** math.ceil(math.log10(highest * (1 + 1e-9)))
    return low, max(high, low * 10)


SERIES: Final = ("sent", "acknowledged", "received")
LANES_MAX: Final = 12  # Producers in the timeline of outages: those that waited longest.
_LANE_HEIGHT: Final = 26
_LANE_FRAME: Final = 60
_HALF_A_MESSAGE: Final = 0.5  # The axis of counts begins here, so that a bar for one message is visible.


def throughput(findings: Findings) -> Markup:
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
    plot = Plot(
        f"latency-{series}", f"Latency over time, {words}", "Median, 99th percentile and longest of each step of time."
    )
    steps = [step for step in findings.steps if step.series == series and step.p50_ms is not None]
    values = [max(value, LOWEST_MS) for step in steps for value in (step.p50_ms, step.p99_ms, step.longest_ms) if value]
    up = Logarithmic(*decades(min(values, default=1.0), max(values, default=10.0)), plot.bottom, plot.top)
    across = _time_axis(findings, plot)
    _outage_bands(findings, plot, across)
    plot.vertical_axis(ticks_of(up, up.ticks(), duration), "latency")
    for name, figure in (("longest", "longest_ms"), ("p99", "p99_ms"), ("p50", "p50_ms")):
        plot.curve(_with_gaps(findings, steps, figure, across, up), name)
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
