"""Rack table: the racks of bookies as operators have set them, in Pulsar's node `/bookies` or in the configuration.

Format:    JSON, group → {bookie → {"rack": "/region/rack", "hostname": "…"}}. Pulsar's admin command writes it. Groups
           matter for isolation only. If a bookie is in several, the last group in order of name counts, as in Pulsar.
           A key is a bookie id, usually `host:port`. Pulsar looks a bookie up by host, so `h:3181` also holds for a
           bookie `h:3182`; here an exact key is preferred. A missing slash is put before a rack; an empty rack, and
           `/` alone, mean unknown.
Read next: candidates.py
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from magnetar.errors import MalformedMetadataError
from magnetar.ids import BookieId

BOOKIES_PATH = "/bookies"
"""Where Pulsar keeps racks, below the store's root."""


@dataclass(frozen=True, slots=True)
class RackTable:
    """A table of racks. Immutable: a change of the node makes a new one."""

    by_key: Mapping[str, str] = field(default_factory=dict)
    """Bookie or host as an operator wrote it → network location, normalised."""
    by_host: Mapping[str, str] = field(default_factory=dict)
    """The hosts of those keys that have the form host:port."""
    below: RackTable | None = None
    """The table that is used where this one has no location."""

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]]) -> RackTable:
        """Makes a table from (bookie, rack); a later pair overrides an earlier one."""
        by_key: dict[str, str] = {}
        by_host: dict[str, str] = {}
        for key, rack in pairs:
            location = normal_location(rack)
            if location is not None:
                by_key[key] = location
                by_host[_host_of(key)] = location
        return cls(by_key, by_host)

    def location_of(self, bookie: BookieId, host: str = "") -> str | None:
        """Returns None if the location is unknown. `host` is the bookie's address, for ids that do not contain it."""
        for key in (bookie, host, _host_of(bookie)):
            location = self.by_key.get(key) or self.by_host.get(key)
            if location is not None:
                return location
        return self.below.location_of(bookie, host) if self.below else None

    def over(self, below: RackTable) -> RackTable:
        """Returns this table over another one: a host named here is preferred to an exact key there."""
        return RackTable(self.by_key, self.by_host, below)


def normal_location(rack: str) -> str | None:
    """Returns `/region/rack` with single slashes; None if it is empty."""
    parts = [part for part in (part.strip() for part in rack.split("/")) if part]
    return "/" + "/".join(parts) if parts else None


def _host_of(key: str) -> str:
    host, separator, port = key.rpartition(":")
    return host if separator and port.isdecimal() else key


# --- Pulsar's node ----------------------------------------------------------------------------------------------------


def parse_bookies_node(value: bytes) -> RackTable:
    """Parses the node's value. An empty one is an empty table; unknown fields are ignored.

    Raises MalformedMetadataError: the caller then keeps its former table.
    """
    if not value.strip():
        return RackTable()
    groups = _loaded(value)
    if groups is None:
        return RackTable()
    pairs = []
    for group, bookies in sorted(_object(groups, "the value").items()):
        for bookie, info in sorted(_object(bookies, f"group {group!r}").items()):
            rack = _object(info, f"bookie {bookie!r}").get("rack")
            if rack is None:
                continue
            if not isinstance(rack, str):
                raise _malformed(f"the rack of bookie {bookie!r} is not a string")
            pairs.append((bookie, rack))
    return RackTable.of(pairs)


def _loaded(value: bytes) -> object:
    try:
        loaded: object = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise _malformed(f"it is not JSON ({error})") from None
    return loaded


def _object(value: object, what: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise _malformed(f"{what} is not a JSON object")
    return value


def _malformed(why: str) -> MalformedMetadataError:
    return MalformedMetadataError(
        f"racks at {BOOKIES_PATH}: {why}; set them again with `pulsar-admin bookies set-bookie-rack`"
    )
