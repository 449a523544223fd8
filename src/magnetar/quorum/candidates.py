"""Candidates: the bookies of a cluster as one client knows them at one moment: where they are, and which failed often.

Format:    a location is `/rack` or `/region/rack` (or longer). The whole of it names the rack, its first part the
           region. All bookies of unknown place share one rack and one region of their own: they may be neighbours.
           A rack table is what operators have set, in Pulsar's node `/bookies` or in the configuration. The node is
           JSON, group → {bookie → {"rack": "/region/rack", "hostname": "…"}}, as Pulsar's admin command writes it.
           Groups matter for isolation only. If a bookie is in several, the last group in order of name counts, as in
           Pulsar. A key is a bookie id, usually `host:port`. Pulsar looks a bookie up by host, so `h:3181` also holds
           for a bookie `h:3182`; here an exact key is preferred. A missing slash is put before a rack; an empty rack,
           and `/` alone, mean unknown.
Invariant: a bookie that is registered as writable and as read-only is becoming read-only, so it is not written to.
           Quarantine: failed requests of the last `interval_s` seconds count. While a bookie is set aside nothing is
           counted, and it returns with a count of zero: if it still fails, it is set aside again.
Order:     bookies are kept sorted; a placement then depends on the random numbers alone.
Limits:    quarantine keeps `errors` moments per bookie, and TRACKED_MAX bookies; beyond that the one noted first is
           forgotten. Times are seconds on any clock that does not go back, passed in with every call.
Read next: placement.py, rack_aware.py
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from magnetar.errors import MalformedMetadataError, NotEnoughBookiesError
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


DEFAULT_RACK = "/default-rack"
DEFAULT_REGION = "default-region"


@dataclass(frozen=True, slots=True)
class Topology:
    """The rack and the region of every bookie, also of those of unknown place. Immutable, as the table is."""

    table: RackTable = field(default_factory=RackTable)
    hosts: Mapping[BookieId, str] = field(default_factory=dict)
    """The hosts of bookies, as far as they have published them."""

    def rack_of(self, bookie: BookieId) -> str:
        return self.table.location_of(bookie, self.hosts.get(bookie, "")) or DEFAULT_RACK

    def region_of(self, bookie: BookieId) -> str:
        return region_of_rack(self.rack_of(bookie))


@dataclass(frozen=True, slots=True)
class Candidates:
    """The bookies that a placement chooses from. Made by `of`."""

    writable: tuple[BookieId, ...]
    """Sorted; those in quarantine are among them."""
    read_only: tuple[BookieId, ...] = ()
    quarantined: frozenset[BookieId] = frozenset()
    free_bytes: Mapping[BookieId, int] = field(default_factory=dict)
    """Free disk of the bookies that have published it."""
    topology: Topology = field(default_factory=Topology)

    @classmethod
    def of(
        cls,
        writable: Iterable[BookieId],
        *,
        read_only: Iterable[BookieId] = (),
        quarantined: Iterable[BookieId] = (),
        free_bytes: Mapping[BookieId, int] | None = None,
        topology: Topology | None = None,
    ) -> Candidates:
        closed = frozenset(read_only)
        is_open = frozenset(writable) - closed
        return cls(
            tuple(sorted(is_open)),
            tuple(sorted(closed)),
            is_open.intersection(quarantined),
            free_bytes or {},
            topology or Topology(),
        )

    def not_enough(self, needed: int, exclude: Collection[BookieId], rule: str = "") -> NotEnoughBookiesError:
        """Returns the error that `needed` bookies cannot be found outside `exclude`."""
        return NotEnoughBookiesError(
            needed=needed,
            known=len(self.writable) + len(self.read_only),
            writable=len(self.writable),
            quarantined=len(self.quarantined),
            excluded=sum(bookie in exclude for bookie in self.writable),
            rule=rule,
        )


def region_of_rack(rack: str) -> str:
    return DEFAULT_REGION if rack == DEFAULT_RACK else rack.split("/", 2)[1]


TRACKED_MAX = 10_000  # More bookies than any cluster has; ids that come and go must not fill the memory.


class Quarantine:
    def __init__(self, *, errors: int, interval_s: float, quarantine_s: float) -> None:
        """With `quarantine_s` 0 no bookie is ever set aside."""
        assert errors >= 1
        self._errors = errors
        self._interval_s = interval_s
        self._quarantine_s = quarantine_s
        self._failures: dict[BookieId, deque[float]] = {}
        self._until: dict[BookieId, float] = {}

    def on_error(self, bookie: BookieId, now: float) -> bool:
        """Notes a failed request. Returns whether this was the one that sets the bookie aside."""
        self._release_expired(now)
        if self._quarantine_s == 0 or bookie in self._until:
            return False
        failures = self._failures.setdefault(bookie, deque(maxlen=self._errors))
        failures.append(now)
        if len(failures) == self._errors and now - failures[0] <= self._interval_s:
            del self._failures[bookie]
            self._until[bookie] = now + self._quarantine_s
            _bound(self._until)
            return True
        _bound(self._failures)
        return False

    def quarantined(self, now: float) -> tuple[BookieId, ...]:
        """Returns the bookies that are set aside now, sorted."""
        self._release_expired(now)
        return tuple(sorted(self._until))

    def _release_expired(self, now: float) -> None:
        # Insertion order is order of expiry, as the time is the same for all: the first that stays ends the search.
        while self._until:
            bookie = next(iter(self._until))
            if self._until[bookie] > now:
                return
            del self._until[bookie]


def _bound(tracked: dict[BookieId, deque[float]] | dict[BookieId, float]) -> None:
    if len(tracked) > TRACKED_MAX:
        del tracked[next(iter(tracked))]
