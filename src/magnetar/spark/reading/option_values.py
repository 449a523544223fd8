"""Parses values of options from text. An invalid value is refused, with the valid ones."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from magnetar.errors import ConfigError

_TRUE = ("true", "1", "yes")
_FALSE = ("false", "0", "no")


def flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name)
    if text is None:
        return default
    lowered = text.strip().lower()
    if lowered not in _TRUE + _FALSE:
        raise ConfigError(f"option {name} is true or false, not {text!r}")
    return lowered in _TRUE


def number(options: Mapping[str, str], name: str, at_least: int, at_most: int) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    try:
        value = int(text.strip().replace("_", ""))
    except ValueError:
        raise ConfigError(f"option {name} is a whole number, not {text!r}") from None
    if not at_least <= value <= at_most:
        raise ConfigError(f"option {name} is at least {at_least} and at most {at_most}, not {value}")
    return value


def choice(options: Mapping[str, str], name: str, choices: Sequence[str], default: str) -> str:
    text = options.get(name, default).strip().lower()
    if text not in choices:
        raise ConfigError(f"option {name} is {' or '.join(choices)}, not {options[name]!r}")
    return text


def json_names(text: str) -> list[str]:
    """Parses the argument of `load(["a", "b"])`, which Spark passes on as JSON."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise ConfigError(f"load takes the names of topics, not {text!r}")
    return [each.strip() for each in found]
