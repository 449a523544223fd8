"""Elements of HTML and SVG as text. Text from outside is escaped here, and nowhere else.

element("p", {"class": "note"}, text("a < b"))      →  <p class="note">a &lt; b</p>

Counts have separators, durations the unit that fits, times are in UTC.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final, NewType

Markup = NewType("Markup", str)
"""Text that is safe in the page: only functions of this module make it."""

_EMPTY = frozenset({"meta", "link", "br", "hr", "path", "line", "rect", "circle", "col"})


def text(value: object) -> Markup:
    return Markup(html.escape(printable(str(value)), quote=False))


def printable(words: str) -> str:
    """Replaces characters that steer a terminal or vanish on a page by visible forms."""
    if words.isprintable():
        return words
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in words)


def element(name: str, attributes: Mapping[str, object] | None = None, *children: Markup) -> Markup:
    """Makes an element. Attributes whose value is None are left out; numbers are written short."""
    written = "".join(
        f' {key}="{html.escape(_number(value))}"' for key, value in (attributes or {}).items() if value is not None
    )
    if name in _EMPTY and not children:
        return Markup(f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{''.join(children)}</{name}>")


def joined(parts: Iterable[Markup], between: str = "") -> Markup:
    return Markup(between.join(parts))


def _number(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return str(value)


NOTHING: Final = "–"
_MINUTE_MS: Final = 60_000.0


def count(value: int) -> str:
    return f"{value:,}"


def short_count(value: float) -> str:
    for limit, unit in ((1_000_000_000, " G"), (1_000_000, " M"), (1_000, " k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def duration(milliseconds: float | None) -> str:
    """Formats three figures, which are enough to compare."""
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
    """Formats ticks of the time axis, counted from the beginning of the run."""
    if seconds < 120:
        return f"{seconds:g} s"
    if seconds < 7_200:
        return f"{seconds / 60:g} min"
    return f"{seconds / 3_600:g} h"


def clock(microseconds: int | None) -> str:
    """Formats as 12:34:56.789."""
    if microseconds is None:
        return NOTHING
    return _moment(microseconds).strftime("%H:%M:%S.%f")[:-3]


def date_and_clock(microseconds: int) -> str:
    return _moment(microseconds).strftime("%Y-%m-%d %H:%M:%S UTC")


def _moment(microseconds: int) -> datetime:
    return datetime.fromtimestamp(microseconds // 1_000_000, UTC).replace(microsecond=microseconds % 1_000_000)
