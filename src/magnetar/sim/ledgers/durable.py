"""What one bookie has on its disks for good: what every power loss from now on would leave.

- journal: groups of files, as far as their bytes are durable. A directory whose changes are not durable has several
  outcomes; what counts exists in each of them.
- logs: an entry counts if the index has it and its block is durable where the index says. The memory twin of the index
  is durable with each write.
- cheap: a file is read again only after what was read; from its beginning if it became another one (a crash, a file
  that is used again). Nothing is read before a question is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Final

from magnetar.bookie.reads import lac_of_explicit
from magnetar.errors import JournalDamagedError, MagnetarError
from magnetar.sim.device import Cut, Directory, FileImage, Node, SimDevice
from magnetar.sim.ledgers.options import journal_dirs, ledger_dirs
from magnetar.sim.machine import SimMachine
from magnetar.storage.entry_log.format import ENTRIES, decode_block, log_path
from magnetar.storage.frames import by_ledger, scan_frames
from magnetar.storage.index.extents import Extent, decode
from magnetar.storage.index.location_index import _flags
from magnetar.storage.index.ordered_store import Changes, MemoryImage, MemoryStore
from magnetar.storage.journal.files import DIRECTORY
from magnetar.storage.journal.format import (
    FILE_HEADER_BYTES,
    GROUP_HEADER_BYTES,
    JournalRecord,
    RecordKind,
    decode_explicit_lac,
    decode_fence,
    decode_file_header,
    decode_group_header,
    decode_records,
    file_number,
    is_intact,
)
from magnetar.storage.journal.mark import NAME as MARK_FILE
from magnetar.storage.journal.mark import ONLY, decode_marks
from magnetar.storage.ledger_flags import LedgerFlags

Key = tuple[int, int]
EXTENT: Final = b"E"
"""How the keys of extents begin in the index."""


@dataclass(slots=True)
class JournalView:
    """What one journal file holds, as far as it was read."""

    durable: bytearray
    head: bytes
    file_id: int
    read_to: int = FILE_HEADER_BYTES
    entries: dict[Key, tuple[int, bytes]] = field(default_factory=dict)
    """Sequence number of the record, and the entry."""
    fences: dict[int, None] = field(default_factory=dict)
    lacs: dict[int, list[bytes]] = field(default_factory=dict)
    last_keys: list[Key] = field(default_factory=list)
    """Entries of the last group."""


class IndexMirror:
    """The index, decoded once."""

    def __init__(self, image: MemoryImage) -> None:
        self.image = image
        self.extents: dict[bytes, Extent] = {}
        self.by_entry: dict[Key, dict[bytes, Extent]] = {}
        self.apply(Changes(put=list(image.values.items())))

    def apply(self, changes: Changes) -> None:
        for first, end in changes.removed_ranges:
            for key in [key for key in self.extents if first <= key < end]:
                self._remove(key)
        for key in changes.removed:
            self._remove(key)
        for key, value in changes.put:
            if key[:1] == EXTENT:
                self._remove(key)
                extent = self.extents[key] = decode(key[1:], value)
                for entry_id in extent.ids:
                    self.by_entry.setdefault((extent.ledger_id, entry_id), {})[key] = extent

    def _remove(self, key: bytes) -> None:
        extent = self.extents.pop(key, None)
        if extent is not None:
            for entry_id in extent.ids:
                self.by_entry[extent.ledger_id, entry_id].pop(key, None)


class DurableImage:
    """`new_entries` fills up with what the journal shows for the first time; `Watch.look_at_disks` empties it."""

    def __init__(self, machine: SimMachine, journals: int, directories: int) -> None:
        self.journals = [machine.device(path) for path in journal_dirs(journals)]
        self.directories = [machine.device(path) for path in ledger_dirs(directories)]
        self.devices = [*self.journals, *self.directories]
        self.new_entries: list[tuple[int, int, bytes]] = []
        self._machine = machine
        self.index_path = ""
        self._views: dict[tuple[int, int], JournalView] = {}
        self._states: list[list[JournalView]] = [[]]
        """What a power loss may leave: a rename that is not durable has two outcomes."""
        self._blocks: dict[tuple[int, int, int], tuple[bytearray, dict[Key, bytes]]] = {}
        self._mirror = IndexMirror(MemoryImage())
        self.is_stale = True
        for device in self.journals:
            device.on_synced.append(lambda _: self.forget())

    def forget(self) -> None:
        """The machine crashed, or its disks were changed from outside."""
        self.is_stale = True

    # --- questions ----------------------------------------------------------------------------------------------------

    def entry(self, ledger_id: int, entry_id: int) -> bytes | None:
        """The entry, without its frame."""
        key = (ledger_id, entry_id)
        self.views()
        found: bytes | None = None
        for state in self._states:
            found = next((view.entries[key][1] for view in state if key in view.entries), None)
            if found is None:
                break
        return found if found is not None else self.logged_entry(ledger_id, entry_id)

    def logged_entry(self, ledger_id: int, entry_id: int) -> bytes | None:
        """From the entry logs alone."""
        for extent in self.extents_of(ledger_id, entry_id):
            block = self._block(extent)
            if block is not None and (ledger_id, entry_id) in block:
                return block[ledger_id, entry_id]
        return None

    def is_fenced(self, ledger_id: int) -> bool:
        if self._is_in_journal(lambda view: ledger_id in view.fences):
            return True
        flags = self.flags(ledger_id)
        return flags is not None and flags.fenced

    def has_lac(self, ledger_id: int, lac: int) -> bool:
        """This one or a greater: a bookie keeps the greatest that it received, whichever came last."""
        if self._is_in_journal(lambda view: any(lac_of_explicit(body) >= lac for body in view.lacs.get(ledger_id, ()))):
            return True
        flags = self.flags(ledger_id)
        return flags is not None and flags.explicit_lac is not None and lac_of_explicit(flags.explicit_lac) >= lac

    def _is_in_journal(self, holds: Callable[[JournalView], bool]) -> bool:
        self.views()
        return all(any(holds(view) for view in state) for state in self._states)

    def flags(self, ledger_id: int) -> LedgerFlags | None:
        return _flags(MemoryStore(self.index()), ledger_id)

    def is_durable(self, extent: Extent) -> bool:
        block = self._block(extent)
        return block is not None and all((extent.ledger_id, entry_id) in block for entry_id in extent.ids)

    def needed(self) -> list[Key]:
        """Entries that the next start must find in the journals: after the mark, and not in a file's last group, which
        a start may take for a torn tail."""
        marks = [self.mark(number) for number in range(len(self.journals))]
        keys: dict[Key, None] = {}
        tails: dict[Key, None] = {}
        for (number, _), view in self.views().items():
            keys.update({key: None for key, (sequence, _) in view.entries.items() if sequence > marks[number]})
            tails.update(dict.fromkeys(view.last_keys))
        return [key for key in keys if key not in tails]

    def torn_tails(self) -> int:
        """Journal files that end, as the next process will read them, with something that is no group."""
        return sum(_is_torn(image) for device in self.journals for name, image in _files(device) if file_number(name))

    def index(self) -> MemoryImage:
        return self._machine.index_image(self.index_path)

    def mark(self, number: int) -> int:
        """Of this journal, as the ledger directories have it: the lowest."""
        name = journal_dirs(len(self.journals))[number]
        found = []
        for device in self.directories:
            content = device.durable(MARK_FILE)
            marks = None if content is None else decode_marks(content)
            if marks is None:
                return 0
            found.append(marks.in_use.get(name, marks.in_use.get(ONLY, 0)))
        return min(found)

    # --- journals -----------------------------------------------------------------------------------------------------

    def views(self) -> dict[tuple[int, int], JournalView]:
        """By number of the journal and of the file: all that may be there after a power loss."""
        if self.is_stale:
            self.is_stale = False
            before, self._views = self._views, {}
            self._states = [[]]
            for number, device in enumerate(self.journals):
                possible = [self._state(number, names, before) for names in _possible_names(device, DIRECTORY)]
                self._states = [state + more for state in self._states for more in possible]
        return self._views

    def _state(
        self, number: int, names: dict[str, FileImage], before: dict[tuple[int, int], JournalView]
    ) -> list[JournalView]:
        """What the journal's files hold if these are their names."""
        found: list[JournalView] = []
        for name, image in names.items():
            if file_number(name) is None:
                continue
            key = number, image.number
            view = self._views.get(key) or self._refresh(before.get(key), image, name)
            if view is not None:
                self._views[key] = view
                found.append(view)
        return found

    def _refresh(self, view: JournalView | None, image: FileImage, name: str) -> JournalView | None:
        head = bytes(image.durable[:FILE_HEADER_BYTES])
        if view is None or view.durable is not image.durable or view.head != head:
            try:
                header = decode_file_header(head, name)
            except JournalDamagedError:
                header = None
            if header is None:
                return None
            view = JournalView(image.durable, head, header.file_id)
        self._read_on(view, _sure_bytes(image))
        return view

    def _read_on(self, view: JournalView, end: int) -> None:
        while (group := _group_at(view, end)) is not None:
            for record in group:
                match record.kind:
                    case RecordKind.ADDS:
                        self._take(view, record.sequence, bytes(record.body))
                    case RecordKind.FENCE:
                        view.fences[decode_fence(record.body).ledger_id] = None
                    case RecordKind.EXPLICIT_LAC:
                        lac = decode_explicit_lac(record.body)
                        view.lacs.setdefault(lac.ledger_id, []).append(lac.body)

    def _take(self, view: JournalView, sequence: int, chunk: bytes) -> None:
        for key, body in _frames(chunk):
            view.entries[key] = sequence, body
            view.last_keys.append(key)
            self.new_entries.append((*key, body))

    # --- entry logs ---------------------------------------------------------------------------------------------------

    def extents_of(self, ledger_id: int, entry_id: int) -> Collection[Extent]:
        """Where the index says that the entry is."""
        return self._known_index().by_entry.get((ledger_id, entry_id), {}).values()

    def extents(self) -> Collection[Extent]:
        """All that the index has."""
        return self._known_index().extents.values()

    def on_index_written(self, changes: Changes) -> None:
        """These were just made."""
        self._mirror.apply(changes)

    def _known_index(self) -> IndexMirror:
        image = self.index()
        if self._mirror.image is not image:  # The disk was replaced, or the index is another one.
            self._mirror = IndexMirror(image)
        return self._mirror

    def _block(self, extent: Extent) -> dict[Key, bytes] | None:
        """None: it is not durable there, or damaged."""
        place = extent.place
        for number, device in enumerate(self.directories):
            image = device.tree.sure(log_path(place.log_id))
            if image is None or _sure_bytes(image) < place.offset + place.size:
                continue
            key = number, place.log_id, place.offset
            known = self._blocks.get(key)
            if known is not None and known[0] is image.durable:
                return known[1]
            data = bytes(image.durable[place.offset : place.offset + place.size])
            try:
                block = decode_block(data, 0, place.log_id, place.offset)
                frames = dict(_frames(bytes(block.body))) if block.kind == ENTRIES else {}
            except MagnetarError:
                return None
            self._blocks[key] = image.durable, frames
            return frames
        return None


def _frames(chunk: bytes) -> Iterator[tuple[Key, bytes]]:
    run = scan_frames(chunk, "a record of the journal or a block of an entry log")
    for ledger_id, a, b in by_ledger(run):
        for index in range(a, b):
            offset = run.offsets[index]
            yield (ledger_id, run.entry_ids[index]), chunk[offset : offset + run.lengths[index]]


def _group_at(view: JournalView, end: int) -> list[JournalRecord] | None:
    start = view.read_to
    header = decode_group_header(view.durable[start : start + GROUP_HEADER_BYTES])
    if header is None or header.file_id != view.file_id or start + header.size > end:
        return None
    group = memoryview(bytes(view.durable[start : start + header.size]))
    if not is_intact(header, group):
        return None
    view.read_to = start + header.size
    view.last_keys = []
    return decode_records(header, group)


def _files(device: SimDevice) -> Iterator[tuple[str, FileImage]]:
    directory = device.tree.find(DIRECTORY)
    if isinstance(directory, Directory):
        for name in sorted(directory.entries):
            node = directory.entries[name]
            if isinstance(node, FileImage):
                yield name, node


def _is_torn(image: FileImage) -> bool:
    data = memoryview(bytes(image.cache))
    at = FILE_HEADER_BYTES
    while (header := decode_group_header(data[at:])) is not None and is_intact(header, data[at : at + header.size]):
        at += header.size
    return any(data[at:])


def _possible_names(device: SimDevice, path: str) -> Iterator[dict[str, FileImage]]:
    """What the directory may hold after a power loss: its changes survive in order, up to any of them."""
    directory = device.tree.find(path)
    if not isinstance(directory, Directory):
        yield {}
        return
    names = dict(directory.durable)
    yield _files_of(names)
    for change in directory.pending:
        change.apply(names)
        yield _files_of(names)


def _files_of(names: dict[str, Node]) -> dict[str, FileImage]:
    return {name: names[name] for name in sorted(names) if isinstance(names[name], FileImage)}  # type: ignore[misc]


def _sure_bytes(image: FileImage) -> int:
    """How many bytes from the beginning are durable, and not about to be cut or overwritten."""
    starts = [change.size if isinstance(change, Cut) else change.offset for change in image.pending]
    return min(starts, default=len(image.durable))
