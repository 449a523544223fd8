"""Rack table: what people have said about where bookies stand, in Pulsar's node `/bookies` or in the configuration.

Node:      JSON, group → {bookie → {"rack": "/region/rack", "hostname": "…"}}. Pulsar's admin command writes it. Groups
           matter for isolation only. If a bookie is in several, the last group in order of name counts, as in Pulsar.
Key:       a bookie id, usually `host:port`. Pulsar looks a bookie up by host, so `h:3181` also speaks for a bookie
           `h:3182`; here an exact key goes first.
Rack:      a slash is put before it if there is none; nothing, and `/` alone, mean unknown.
Read next: topology.py
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
    """Immutable: a change of the node makes a new one."""

    by_key: Mapping[str, str] = field(default_factory=dict)
    """Bookie or host as somebody wrote it → network location, normalised."""
    by_host: Mapping[str, str] = field(default_factory=dict)
    """The hosts of those keys that have the form host:port."""
    below: RackTable | None = None
    """Asked where this one says nothing."""

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]]) -> RackTable:
        """From (bookie, rack); a later pair overrides an earlier one."""
        by_key: dict[str, str] = {}
        by_host: dict[str, str] = {}
        for key, rack in pairs:
            location = normal_location(rack)
            if location is not None:
                by_key[key] = location
                by_host[_host_of(key)] = location
        return cls(by_key, by_host)

    def location_of(self, bookie: BookieId, host: str = "") -> str | None:
        """None if nobody said. `host` is where the bookie is reached, for ids that do not tell."""
        for key in (bookie, host, _host_of(bookie)):
            location = self.by_key.get(key) or self.by_host.get(key)
            if location is not None:
                return location
        return self.below.location_of(bookie, host) if self.below else None

    def over(self, below: RackTable) -> RackTable:
        """This table, with another one for what it does not say: a host named here goes before an exact key there."""
        return RackTable(self.by_key, self.by_host, below)


def normal_location(rack: str) -> str | None:
    """`/region/rack` with single slashes; None where it names nothing."""
    parts = [part for part in (part.strip() for part in rack.split("/")) if part]
    return "/" + "/".join(parts) if parts else None


def _host_of(key: str) -> str:
    host, separator, port = key.rpartition(":")
    return host if separator and port.isdecimal() else key


# --- Pulsar's node ----------------------------------------------------------------------------------------------------


def parse_bookies_node(value: bytes) -> RackTable:
    """From the node's value. An empty one is an empty table; fields that we do not know are ignored.

    Raises MalformedMetadataError: the caller then keeps the table it had.
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
