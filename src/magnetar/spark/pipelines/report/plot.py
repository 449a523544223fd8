"""A plot: axes with ticks and grid, bands, lines; and its scales, from values to pixels, with their ticks.

Colours come from style.css by class. Scales are pure arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from magnetar.spark.pipelines.report.markup import Markup, element, joined, text

WIDTH: Final = 960
_LEFT: Final = 72
_RIGHT: Final = 20
_TOP: Final = 14
_BOTTOM: Final = 46

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
    width: int = WIDTH
    _parts: list[Markup] = field(default_factory=list)

    @property
    def left(self) -> float:
        return _LEFT

    @property
    def right(self) -> float:
        return self.width - _RIGHT

    @property
    def top(self) -> float:
        return _TOP

    @property
    def bottom(self) -> float:
        return self.height - _BOTTOM

    def add(self, *parts: Markup) -> None:
        self._parts.extend(parts)

    def horizontal_axis(self, ticks: Sequence[tuple[float, str]], label: str) -> None:
        """Takes ticks as (x, text)."""
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
_NICE_SECONDS: Final = (
    1,
    2,
    5,
    10,
    15,
    30,
    60,
    120,
    300,
    600,
    900,
    1_800,
    3_600,
    7_200,
    14_400,
    21_600,
    43_200,
    86_400,
)


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
