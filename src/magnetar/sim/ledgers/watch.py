"""Watch: everything that is seen of one world comes together here, and is told to the invariants.

Sees:      taps at bookies, the metadata, the clients' own callbacks, the disks. All at the moment it happens, before
           anybody else can act on it.
Invariant: a class with an id; it overrides the events that it needs, and calls `violated`. A run goes on behind a
           violation: what follows from it is seen, too.
Excused:   a bookie whose disk lied or was emptied. There are fewer of those than Qa, so its copies are not asked for.
Read next: invariants/
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

from magnetar.ids import EntryId
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.metadata.bookkeeper.versioned import Versioned
from magnetar.quorum.write_sets import write_set
from magnetar.sim.disk_faults import Fault
from magnetar.sim.ledgers.durable import DurableImage
from magnetar.sim.ledgers.history import History, LedgerHistory
from magnetar.sim.ledgers.options import Options
from magnetar.sim.machine import SimMachine
from magnetar.sim.world import World
from magnetar.storage.ordered_store import Changes

if TYPE_CHECKING:
    from magnetar.bookie.bookie import Bookie

_VIOLATIONS_MAX: Final = 5  # Of one invariant: what follows is more of the same.
_LYING: Final = (Fault.LATENT_SECTOR, Fault.BIT_FLIP, Fault.MISDIRECTED_WRITE, Fault.EMPTIED)


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
    body: bytes
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
    lacs: dict[int, bytes] = field(default_factory=dict)
    emptied: bool = False
    """A disk or the cookie in the metadata is gone, and nobody repaired the bookie since."""
    durable_before: list[tuple[int, int]] = field(default_factory=list)
    """Entries of its journal that were durable, and needed, when its process began."""
    sync_failed_s: float | None = None
    """When a sync of one of its disks failed, in this process's life."""
    is_given_up: bool = False
    """Its cookie was deleted: nothing is expected of it any more."""

    @property
    def is_excused(self) -> bool:
        if self.is_given_up:
            return True
        devices = [*self.image.journals, *self.image.directories]
        return any(device.faults.counts[fault] for device in devices for fault in _LYING)


# --- invariants -------------------------------------------------------------------------------------------------------


class Invariant:
    """Events are told in the order in which they happen. An event that is not overridden costs nothing."""

    id: ClassVar[str]

    def __init__(self, watch: Watch) -> None:
        self.watch = watch

    def violated(self, what: str) -> None:
        self.watch.violated(self.id, what)

    # --- clients ---

    def on_acked(self, ledger: LedgerHistory, first: int, last: int, tokens: Sequence[int]) -> None:
        """A writer's caller was told. `ledger.acked` is still what it was before."""

    def on_lac_seen(self, ledger: LedgerHistory, reader: str, before: int, lac: int) -> None:
        """A reader believes that the ledger is committed up to here."""

    def on_read(
        self, ledger: LedgerHistory, reader: str, entry_id: int, payload: bytes, lac: int, *, sure: bool
    ) -> None:
        """A regular read returned an entry. `sure`: at the end, when everything is well."""

    # --- metadata ---

    def on_ledger_change(self, change: LedgerChange) -> None: ...
    def on_change_asked(self, ledger_id: int, by: str, wanted: LedgerMetadata) -> None:
        """A client sent a new value for a ledger."""

    def on_change_answered(self, ledger_id: int, by: str, wanted: LedgerMetadata) -> None:
        """It heard of it, for better or worse."""

    # --- bookies ---

    def on_adds_received(
        self, bookie: BookieWatch, ledger_id: int, entry_ids: Sequence[int], lacs: Sequence[int], *, recovery: bool
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

_EVENTS: Final = [name for name in vars(Invariant) if name.startswith("on_") or name == "at_end"]


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
        self.violations: list[Violation] = []
        self.counters: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.invariants = [kind(self) for kind in invariants]
        self._hears: dict[str, list[Callable[..., None]]] = {name: self._who_hears(name) for name in _EVENTS}

    def _who_hears(self, event: str) -> list[Callable[..., None]]:
        return [
            getattr(invariant, event)
            for invariant in self.invariants
            if getattr(type(invariant), event) is not getattr(Invariant, event)
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
        """Who of the write set has it for good, or had it and is excused."""
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
            image.views()
            if image.new_entries:
                found, image.new_entries = image.new_entries, []
                for ledger_id, entry_id, body in found:
                    self.tell("on_stored", bookie, ledger_id, entry_id, body)
