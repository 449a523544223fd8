"""Watch: everything that is seen of one world comes together here, and is reported to the invariants.

- sees: observers at bookies, the metadata, the clients' own callbacks, the disks. All at the moment it happens, before
  any other code can act on it.
- history: what the clients sent, and the answers that they got: the truth that invariants compare with. A ledger has
  one writer, which numbers its entries; so (ledger, entry) has one payload forever. Acknowledgements come in order, so
  one number per ledger says how far they go.
- excused: a bookie whose disk lied or was emptied. There are fewer of those than Qa, so its copies are not asked for.

Invariant: a class with an id; it overrides the events that it needs, and calls `violated`. A run continues after a
           violation: what follows from it is seen, too.
Read next: invariants.py
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Final

from magnetar.errors import MalformedMetadataError
from magnetar.ids import EntryId, LedgerId
from magnetar.metadata.bookkeeper.ledger_codec import decode
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerMetadata, Versioned
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.bookkeeper.underreplication import marked_ledger, marks_root
from magnetar.metadata.paths import join, name_of
from magnetar.metadata.store import Create, Delete, Put, Request
from magnetar.quorum.sizes import write_set
from magnetar.sim.device import LIES
from magnetar.sim.ledgers.durable import DurableImage
from magnetar.sim.ledgers.options import Options
from magnetar.sim.machine import SimMachine
from magnetar.sim.world import World
from magnetar.storage.index.ordered_store import Changes
from magnetar.wire.bookkeeper.digests import DigestType, EntryDigest, entry_digest

if TYPE_CHECKING:
    from magnetar.bookie.bookie import Bookie


_VIOLATIONS_MAX: Final = 5  # For one invariant: what follows is more of the same.


@dataclass(frozen=True, slots=True)
class Violation:
    invariant: str
    what: str
    at_s: float

    def __str__(self) -> str:
        return f"{self.invariant} at {self.at_s:.6f}: {self.what}"


# --- what is seen -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AddAnswer:
    bookie: BookieWatch
    client: str
    ledger_id: int
    entry_id: int
    code: int
    recovery: bool
    deferred: bool
    received_s: float
    """When the request came."""


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    bookie: BookieWatch
    client: str
    ledger_id: int
    entry_id: int
    """As it was asked for; -1 is the last one."""
    code: int
    fence: bool
    bodies: Sequence[bytes]
    """The entry, or for a batch those from it on, if the code is EOK."""
    received_s: float


@dataclass(frozen=True, slots=True)
class LacAnswer:
    """To a `WriteLac`."""

    bookie: BookieWatch
    ledger_id: int
    lac: int
    code: int


@dataclass(frozen=True, slots=True)
class LedgerChange:
    ledger_id: int
    before: Versioned[LedgerMetadata] | None
    after: Versioned[LedgerMetadata] | None
    by: str
    """The node whose session made it."""


@dataclass(slots=True)
class BookieWatch:
    """What is known of one bookie from outside: what it promised, and what happened to it."""

    name: str
    bookie_id: str
    machine: SimMachine
    image: DurableImage
    promised: dict[int, dict[int, float]] = field(default_factory=dict)
    """Ledger → entries whose adds it answered EOK, and when first."""
    fenced: dict[int, None] = field(default_factory=dict)
    """Ledgers of which it answered a fence."""
    denied: dict[tuple[int, int], None] = field(default_factory=dict)
    """Entries that it denied to a fencing read."""
    emptied: bool = False
    """A disk or the cookie in the metadata was lost, and the bookie was not repaired since."""
    durable_before: list[tuple[int, int]] = field(default_factory=list)
    """Entries of its journal that were durable, and needed, when its process began."""
    sync_failed_s: float | None = None
    """When a sync of one of its disks failed, in this process's life."""
    ruined: int = 0
    """How often its entry logs were damaged by the fault `ruin`."""
    is_given_up: bool = False
    """Its cookie was deleted: nothing is expected of it any more."""

    @property
    def is_excused(self) -> bool:
        if self.is_given_up:
            return True
        return any([device.faults.has_lied for device in self.image.devices])  # noqa: C419 - a generator costs more

    @property
    def may_deny(self) -> bool:
        """It may have forgotten what it promised. Not because of damaged entry logs: it knows what was in them."""
        if not self.ruined or self.is_given_up:
            return self.is_excused
        return sum(device.faults.counts[fault] for device in self.image.devices for fault in LIES) > self.ruined


# --- invariants -------------------------------------------------------------------------------------------------------


class Invariant:
    """Events are reported in the order in which they happen. An event that is not overridden costs nothing."""

    id: ClassVar[str]

    def __init__(self, watch: Watch) -> None:
        self.watch = watch

    def violated(self, what: str) -> None:
        self.watch.violated(self.id, what)

    # --- clients ---

    def on_acked(self, ledger: LedgerHistory, first: int, last: int, tokens: Sequence[int]) -> None:
        """A writer's caller got its acknowledgement. `ledger.acked` is still what it was before."""

    def on_lac_seen(self, ledger: LedgerHistory, reader: str, before: int, lac: int) -> None:
        """A reader believes that the ledger is committed up to here."""

    def on_read(self, ledger: LedgerHistory, reader: str, entry_id: int, payload: bytes, lac: int) -> None:
        """A regular read returned an entry."""

    # --- metadata ---

    def on_ledger_change(self, change: LedgerChange) -> None: ...
    def on_mark_cleared(self, ledger_id: int, by: str) -> None:
        """The mark of a ledger that lacks replicas was deleted."""

    def on_change_asked(self, ledger_id: int, by: str, wanted: LedgerMetadata) -> None:
        """A client sent a new value for a ledger."""

    def on_change_answered(self, ledger_id: int, by: str, wanted: LedgerMetadata) -> None:
        """It heard of it, for better or worse."""

    # --- bookies ---

    def on_adds_received(
        self, bookie: BookieWatch, ledger_id: int, entry_ids: Sequence[int], lacs: Sequence[int]
    ) -> None: ...
    def on_add_answer(self, answer: AddAnswer) -> None: ...
    def on_read_answer(self, answer: ReadAnswer) -> None: ...
    def on_lac_answer(self, answer: LacAnswer) -> None: ...
    def on_any_answer(self, bookie: BookieWatch) -> None: ...
    def on_stored(self, bookie: BookieWatch, ledger_id: int, entry_id: int, body: bytes) -> None:
        """An entry is durable in the journal for the first time, or again."""

    def on_bookie_open(self, bookie: BookieWatch, opened: Bookie) -> None:
        """It has replayed its journal, and serves."""

    def on_bookie_closed(self, bookie: BookieWatch) -> None:
        """It has ended in order, or given itself up; its process ends with the next step."""

    def on_bookie_refused(self, bookie: BookieWatch, error: BaseException) -> None:
        """It did not start."""

    def on_index_write(self, bookie: BookieWatch, changes: Changes) -> None:
        """About to be made."""

    def on_mark_moved(self, bookie: BookieWatch) -> None:
        """The file of the mark was written anew in some directory."""

    def on_log_names_synced(self, bookie: BookieWatch) -> None: ...

    def on_client_closed(self, name: str) -> None:
        """A client has ended in order; its process ends with the next step."""

    # --- the end ---

    def at_end(self) -> None:
        """Everything is healed, closed and read."""


# --- the watch --------------------------------------------------------------------------------------------------------


def _events() -> Iterator[str]:
    """All that classes without an id declare: `Invariant`, and what it is for each kind of worlds."""
    kinds = [Invariant, *(kind for kind in Invariant.__subclasses__() if not hasattr(kind, "id"))]
    return (name for kind in kinds for name in vars(kind) if name.startswith(("on_", "at_")))


class Watch:
    def __init__(self, world: World, options: Options, invariants: Sequence[type[Invariant]]) -> None:
        self.world = world
        self.options = options
        self.history = History()
        self.ledgers: dict[int, Versioned[LedgerMetadata]] = {}
        """As the metadata has them at this moment."""
        self.gone: dict[int, LedgerMetadata] = {}
        """Deleted ones, as they were."""
        self.bookies: dict[str, BookieWatch] = {}
        """By bookie id."""
        self.written_back: dict[int, None] = {}
        """Ledgers of which a recovery has written entries again."""
        self.author_session = 0
        """The session whose change is reported at this moment."""
        self.violations: list[Violation] = []
        self.counters: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.invariants = [kind(self) for kind in invariants]
        self._hears: dict[str, list[Callable[..., None]]] = {event: self._hearers(event) for event in _events()}
        self._paths = BookKeeperPaths(options.client_config().metadata.ledgers_root)
        self._marks = join(marks_root(self._paths), "")
        self._ledger_ids: dict[str, LedgerId | None] = {}
        self.is_replicated = False
        """The world is healed, and no ledger is marked any more."""

    def _hearers(self, event: str) -> list[Callable[..., None]]:
        """Those whose own class has it: an event that only the base class has costs nothing."""
        return [
            getattr(invariant, event)
            for invariant in self.invariants
            if any(event in vars(kind) for kind in type(invariant).__mro__ if hasattr(kind, "id"))
        ]

    def tell(self, event: str, *args: Any, **named: Any) -> None:
        for hear in self._hears[event]:
            hear(*args, **named)

    def hears(self, event: str) -> bool:
        return bool(self._hears[event])

    @property
    def now(self) -> float:
        return self.world.loop.now

    def violated(self, invariant: str, what: str) -> None:
        known = sum(violation.invariant == invariant for violation in self.violations)
        if known < _VIOLATIONS_MAX:
            self.violations.append(Violation(invariant, what, self.now))
            self.note(f"VIOLATION {invariant}: {what}")

    def note(self, text: str) -> None:
        """For the trace, and a part of the digest."""
        self.world.loop.note(text)

    def struck(self, fault: str) -> None:
        self.faults[fault] += 1

    # --- metadata -----------------------------------------------------------------------------------------------------

    def on_metadata_asked(self, request: Request, by: str, answer: asyncio.Future[Any]) -> None:
        """A process has sent a request. A ledger's new value is followed until the answer."""
        self.counters["metadata requests"] += 1
        if isinstance(request, Put) and (ledger_id := self._ledger_at(request.path)) is not None:
            wanted = _decoded(ledger_id, request.value)
            self.tell("on_change_asked", ledger_id, by, wanted)
            answer.add_done_callback(lambda _: self.tell("on_change_answered", ledger_id, by, wanted))

    def on_operation(self, operation: Create | Put | Delete, result: Any, by: str) -> None:
        """A change of the metadata was made, on behalf of a session of this node."""
        if (ledger_id := self._ledger_at(operation.path)) is None:
            self._on_other_operation(operation, by)
            return
        before, after = self.ledgers.get(ledger_id), None
        if isinstance(operation, Create | Put):
            version = result if isinstance(operation, Put) else 0
            after = self.ledgers[ledger_id] = Versioned(_decoded(ledger_id, operation.value), version)
        elif before is not None:
            self.gone[ledger_id] = self.ledgers.pop(ledger_id).value
        change = LedgerChange(ledger_id, before, after, by)
        self.note(_described(change))
        if after is not None and after.value.is_closed and ledger_id in self.written_back:
            self.counters["recoveries that wrote back"] += 1
        self.look_at_disks()
        self.tell("on_ledger_change", change)

    def on_session_ended(self, session_id: int, by: str) -> None:
        """The nodes of a session vanish with it. No invariant of ledgers follows one of those."""

    def _on_other_operation(self, operation: Create | Put | Delete, by: str) -> None:
        if isinstance(operation, Delete) and operation.path.startswith(self._marks):
            ledger_id = marked_ledger(name_of(operation.path))
            if ledger_id is not None:
                self.look_at_disks()
                self.tell("on_mark_cleared", ledger_id, by)

    def _ledger_at(self, path: str) -> LedgerId | None:
        if path not in self._ledger_ids:
            try:
                self._ledger_ids[path] = self._paths.ledger_id_of(path)
            except MalformedMetadataError:
                self._ledger_ids[path] = None
        return self._ledger_ids[path]

    # --- questions that several invariants have -----------------------------------------------------------------------

    def metadata(self, ledger_id: int) -> LedgerMetadata | None:
        known = self.ledgers.get(ledger_id)
        return known.value if known is not None else self.gone.get(ledger_id)

    def write_set_of(self, metadata: LedgerMetadata, entry_id: int) -> list[BookieWatch]:
        ensemble = metadata.fragment_of(EntryId(entry_id)).ensemble
        return [
            self.bookies[ensemble[position]]
            for position in write_set(metadata.ensemble_size, metadata.write_quorum, entry_id)
        ]

    def holders(self, metadata: LedgerMetadata, entry_id: int) -> list[BookieWatch]:
        """The bookies of the write set that have it durably, or had it and are excused."""
        ledger_id = metadata.ledger_id
        return [
            bookie
            for bookie in self.write_set_of(metadata, entry_id)
            if bookie.image.entry(ledger_id, entry_id) is not None
            or (bookie.is_excused and entry_id in bookie.promised.get(ledger_id, ()))
        ]

    def look_at_disks(self) -> None:
        """Tells of what has become durable since the last look."""
        for bookie in self.bookies.values():
            image = bookie.image
            if image.is_stale:
                image.views()
            if image.new_entries:
                found, image.new_entries = image.new_entries, []
                for ledger_id, entry_id, body in found:
                    self.tell("on_stored", bookie, ledger_id, entry_id, body)


@lru_cache(maxsize=256)
def _decoded(ledger_id: LedgerId, value: bytes) -> LedgerMetadata:
    """Each value is seen twice: when its author asks for it, and when it is stored."""
    return decode(ledger_id, value, node_created_ms=0)


def _described(change: LedgerChange) -> str:
    if change.after is None:
        return f"ledger {change.ledger_id} deleted by {change.by}"
    value = change.after.value
    fragments = " ".join(f"{f.first_entry_id}:{','.join(f.ensemble)}" for f in value.fragments)
    end = f" at {value.last_entry_id}" if value.is_closed else ""
    return f"ledger {change.ledger_id} v{change.after.version} {value.state.name}{end} by {change.by}: {fragments}"


@dataclass(slots=True)
class LedgerHistory:
    ledger_id: int
    password: bytes
    digest: EntryDigest
    writer: str
    """The node of its writer."""
    payloads: list[bytes] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    """Of all payloads up to and including each."""
    acked: int = -1
    """The last acknowledged entry."""
    closing: bool = False
    """Its writer has asked for the close."""
    deleting: bool = False
    """A client has asked for its deletion, so it may be gone."""

    def length_at(self, entry_id: int) -> int:
        return self.lengths[entry_id] if entry_id >= 0 else 0


class History:
    def __init__(self) -> None:
        self.ledgers: dict[int, LedgerHistory] = {}

    def created(self, ledger_id: int, password: bytes, digest: DigestType, writer: str) -> LedgerHistory:
        assert ledger_id not in self.ledgers, f"ledger {ledger_id} was created twice"
        known = LedgerHistory(ledger_id, password, entry_digest(digest, password), writer)
        self.ledgers[ledger_id] = known
        return known

    def sent(self, ledger: LedgerHistory, entry_id: int, payload: bytes) -> None:
        assert entry_id == len(ledger.payloads), f"entry {entry_id} follows {len(ledger.payloads) - 1}"
        ledger.payloads.append(payload)
        ledger.lengths.append(ledger.length_at(entry_id - 1) + len(payload))
