"""Knobs: how a section declares its keys, and the checks every value passes.

Invariant: a knob's type is the type of its default: int, bool or str. A section calls `check_knobs` first in
           `__post_init__`, so that no way of making it, a test's constructor call included, avoids the bounds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from magnetar.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Value: TypeAlias = int | bool | str
V = TypeVar("V", int, bool, str)

MASK = "****"
_SHOWN_CHARACTERS_MAX = 100  # Keeps a message readable as one line.
_METADATA_KEY = "magnetar.knob"
_TYPE_NAMES = {int: "an integer", bool: "true or false", str: "a string"}


@dataclass(frozen=True, slots=True)
class Knob:
    """The properties of one key besides its name."""

    default: Value
    what: str
    within: tuple[int, int | None] | None = None
    """The least value that is allowed, and the greatest if there is one."""
    choices: tuple[str, ...] = ()
    secret: bool = False
    bookkeeper: str = ""
    pulsar: str = ""
    kafka: str = ""

    @property
    def type(self) -> type[Value]:
        return type(self.default)

    @property
    def peer_names(self) -> tuple[str, ...]:
        return tuple(name for name in (self.bookkeeper, self.pulsar, self.kafka) if name)

    def shown(self, value: object) -> str:
        """Returns the value as a message may print it; a secret is never printed."""
        if self.secret and value:
            return MASK
        text = repr(value)
        return text if len(text) <= _SHOWN_CHARACTERS_MAX else f"{text[:_SHOWN_CHARACTERS_MAX]}…"

    def allowed(self) -> str:
        """Returns the range in words, for messages and docs; empty when every value of the type is allowed."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.within is None:
            return ""
        low, high = self.within
        return f"at least {low:_}" if high is None else f"{low:_} to {high:_}"

    def complaint(self, value: object) -> str | None:
        """Returns why this value is refused, or None."""
        if type(value) is not self.type:  # Exactly: a bool is not an int here, although Python says so.
            return f"{self.shown(value)} is not {_TYPE_NAMES[self.type]}"
        if self.choices and value not in self.choices:
            return f"{self.shown(value)} is not {self.allowed()}"
        if isinstance(value, int) and not self._is_within_bounds(value):
            return f"{self.shown(value)} is out of range: allowed is {self.allowed()}"
        return None

    def _is_within_bounds(self, value: int) -> bool:
        low, high = self.within or (value, value)
        return low <= value and (high is None or value <= high)


def knob(
    default: V,
    what: str,
    *,
    within: tuple[int, int | None] | None = None,
    choices: tuple[str, ...] = (),
    secret: bool = False,
    bookkeeper: str = "",
    pulsar: str = "",
    kafka: str = "",
) -> V:
    """Returns a dataclass field with its declaration. A secret is left out of `repr`, so no log line can show it."""
    declared = Knob(default, what, within, choices, secret, bookkeeper, pulsar, kafka)
    field: Any = dataclasses.field(default=default, repr=not secret, metadata={_METADATA_KEY: declared})
    return cast("V", field)


def knobs_of(section: type[DataclassInstance] | DataclassInstance) -> Iterator[tuple[str, Knob]]:
    """Yields names and knobs of a section, in the order of their declaration."""
    for field in dataclasses.fields(section):
        yield field.name, field.metadata[_METADATA_KEY]


def check_knobs(section: DataclassInstance) -> None:
    """Checks type and range of every value. For values from outside, `load` has checked them already, with the
    origin."""
    for name, declared in knobs_of(section):
        complaint = declared.complaint(getattr(section, name))
        if complaint:
            raise ConfigError(f"{type(section).__name__}.{name}: {complaint}")
