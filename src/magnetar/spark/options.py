"""Options of the data source: names are checked, values parsed. A mistake is refused, with the valid names or values.

Format:    Spark passes its own options beside the user's, all in lower case.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from magnetar.config.load import nearest
from magnetar.errors import ConfigError

OF_SPARK = frozenset(
    {"checkpointlocation", "queryname", "provider", "owner", "location", "is_managed_location", "comment", "external"}
)
"""Spark's own additions to the options of a streaming query, and to those of a table of its catalog."""
_TWICE = "option."  # Every option of a catalog table comes once more with this before its name.
_TRUE = ("true", "1", "yes")
_FALSE = ("false", "0", "no")


def known_options(given: Mapping[str, str], known: Iterable[str], from_call: Sequence[str]) -> dict[str, str]:
    """Returns the options by their documented names. `from_call`: Spark's names for the argument of load or save."""
    names = {name.lower(): name for name in known}
    check_options((key for key in given if key.lower() not in from_call), names.values())
    return {names.get(key.lower(), key.lower()): value for key, value in given.items()}


def check_options(given: Iterable[str], known: Iterable[str]) -> None:
    """Takes `known` as documented, in any case. Raises `ConfigError` for the first option that is not among them."""
    names = sorted(known)
    lowered = {name.lower() for name in names} | OF_SPARK
    for option in given:
        if option.lower().removeprefix(_TWICE) not in lowered:
            by_lowered = {name.lower(): name for name in names}
            hint = by_lowered[nearest(option.lower(), sorted(by_lowered))]
            raise ConfigError(f"unknown option {option!r}: did you mean {hint!r}? Known are {', '.join(names)}")


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


def choice(options: Mapping[str, str], name: str, choices: Sequence[str]) -> str:
    """Returns the choice in lower case; the first one is the default."""
    text = options.get(name, choices[0]).strip().lower()
    if text not in choices:
        hint = nearest(text, list(choices))
        raise ConfigError(f"option {name} is {text!r}: did you mean {hint!r}? Known are {', '.join(choices)}")
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
