"""Options of the data source: an unknown one is refused, with the nearest known one.

Format:    Spark passes its own options beside the user's, all in lower case.
"""

from __future__ import annotations

from collections.abc import Iterable

from magnetar.config.load import nearest
from magnetar.errors import ConfigError

OF_SPARK = frozenset(
    {"checkpointlocation", "queryname", "provider", "owner", "location", "is_managed_location", "comment", "external"}
)
"""Spark's own additions to the options of a streaming query, and to those of a table of its catalog."""
_TWICE = "option."  # Every option of a catalog table comes once more with this before its name.


def check_options(given: Iterable[str], known: Iterable[str]) -> None:
    """Takes `known` as documented, in any case. Raises `ConfigError` for the first option that is not among them."""
    names = sorted(known)
    lowered = {name.lower() for name in names} | OF_SPARK
    for option in given:
        if option.lower().removeprefix(_TWICE) not in lowered:
            raise ConfigError(
                f"unknown option {option!r}: did you mean {_nearest(option, names)!r}? Known are {', '.join(names)}"
            )


def _nearest(option: str, names: list[str]) -> str:
    by_lowered = {name.lower(): name for name in names}
    return by_lowered[nearest(option.lower(), sorted(by_lowered))]
