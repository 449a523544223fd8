"""Elements of HTML and SVG as text. What comes from outside is escaped here, and nowhere else.

element("p", {"class": "note"}, text("a < b"))      →  <p class="note">a &lt; b</p>
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from typing import NewType

Markup = NewType("Markup", str)
"""Text that is safe to be put into the page: only functions of this module make it."""

_EMPTY = frozenset({"meta", "link", "br", "hr", "path", "line", "rect", "circle", "col"})


def text(value: object) -> Markup:
    """Anything as text of the page."""
    return Markup(html.escape(printable(str(value)), quote=False))


def printable(words: str) -> str:
    """Characters that steer a terminal or vanish on a page are shown as what they are."""
    if words.isprintable():
        return words
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in words)


def element(name: str, attributes: Mapping[str, object] | None = None, *children: Markup) -> Markup:
    """Attributes whose value is None are left out; numbers are written short."""
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
