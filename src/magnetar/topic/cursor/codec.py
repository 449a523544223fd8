"""The state of a cursor as Pulsar stores it: PositionInfo in the cursor's ledger, ManagedCursorInfo in its node.

Format:    The last entry of a cursor's ledger is its state: mark-delete position, acknowledged entries after it (field
           6: one bitmap per ledger; or field 3: runs), batches acknowledged in part, long properties. A reader must
           know both fields. The node has the id of that ledger and an older mark-delete position; or, with ledger id
           −1, the whole state, with runs. A run is (lower, upper]: the lower end is not part of it, and of the same
           ledger; Pulsar before 2.11 also wrote runs over several ledgers. Unknown fields survive in the node.
Limits:    What is beyond them is left out, and delivered again after a crash.
Read next: acks.py, ledger_storage.py
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote_plus, unquote_plus

from magnetar.config.topic import CursorConfig
from magnetar.errors import MalformedMetadataError
from magnetar.topic.chain import LedgerChain
from magnetar.topic.cursor.acks import AckedEntries, AckState, bits_of_words, words_of
from magnetar.topic.log.managed_ledger import parse_message, unpacked
from magnetar.topic.position import Position
from magnetar.topic.proto.managed_ledger_pb2 import (
    BatchedEntryDeletionIndexInfo,
    ManagedCursorInfo,
    MessageRange,
    PositionInfo,
)

NO_LEDGER: Final = -1
"""In a node: the state is in the node itself."""
_BITMAP_BITS_MAX: Final = 8 * 2**20
"""The limit of one stored state: about 1.3 MB as an entry. A ledger of the default length has 50,000."""


def encode_cursor_name(name: str) -> str:
    """Encodes the name as a part of a path, by the rules of Java's URLEncoder."""
    return quote_plus(name, safe="*").replace("~", "%7E")


def decode_cursor_name(encoded: str) -> str:
    return unquote_plus(encoded)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Is what is stored of a cursor at one moment."""

    info: PositionInfo
    version: int
    """The version of the acknowledgement state."""
    gaps: int
    """The runs of acknowledged entries and the partly acknowledged batches, which determine the length."""

    @property
    def mark_delete(self) -> Position:
        return Position(self.info.ledger_id, self.info.entry_id)


# --- writing ----------------------------------------------------------------------------------------------------------


def take_snapshot(acks: AckState, properties: Mapping[str, int], config: CursorConfig) -> Snapshot:
    info = PositionInfo(ledger_id=acks.mark_delete.ledger_id, entry_id=acks.mark_delete.entry_id)
    for name, value in properties.items():
        info.properties.add(name=name, value=value)
    gaps = 0
    if acks.has_gaps:
        if config.ranges_as_bitmaps:
            _add_bitmaps(info, acks, config.ranges_stored_max)
        else:
            _add_ranges(info.individual_deleted_messages, acks.ranges(), config.ranges_stored_max)
        _add_batches(info, acks, config.batches_stored_max)
        gaps = acks.range_count() + len(info.batched_entry_deletion_index_info)
    return Snapshot(info, acks.version, gaps)


def _add_bitmaps(info: PositionInfo, acks: AckState, ranges_max: int) -> None:
    ranges = bits = 0
    for ledger_id, ranges_here, bitmap in acks.bitmaps():
        room = _BITMAP_BITS_MAX - bits
        if ranges > ranges_max or room <= 0:
            return
        words = words_of(bitmap if bitmap.bit_length() <= room else bitmap & ((1 << room) - 1))
        if words:
            info.individual_deleted_message_ranges.add(key=ledger_id, values=words)
        ranges += ranges_here
        bits += bitmap.bit_length()


def _add_ranges(field: object, ranges: Iterable[tuple[Position, Position]], ranges_max: int) -> None:
    for count, (first, last) in enumerate(ranges):
        if count == ranges_max:
            return
        added: MessageRange = field.add()  # type: ignore[attr-defined]
        added.lower_endpoint.ledger_id, added.lower_endpoint.entry_id = first.previous
        added.upper_endpoint.ledger_id, added.upper_endpoint.entry_id = last


def _add_batches(info: PositionInfo, acks: AckState, batches_max: int) -> None:
    for position in sorted(acks.batches)[:batches_max]:
        added = info.batched_entry_deletion_index_info.add(delete_set=words_of(acks.batches[position]))
        added.position.ledger_id, added.position.entry_id = position


def node_for_ledger(known: ManagedCursorInfo, snapshot: Snapshot, ledger_id: int) -> ManagedCursorInfo:
    """Returns a node for a state in this ledger; it has the position in case the ledger is lost."""
    node = _node(known, snapshot)
    node.cursors_ledger_id = ledger_id
    return node


def node_with_state(known: ManagedCursorInfo, snapshot: Snapshot) -> ManagedCursorInfo:
    """Returns a node that has the state."""
    node = _node(known, snapshot)
    node.cursors_ledger_id = NO_LEDGER
    node.individual_deleted_messages.extend(snapshot.info.individual_deleted_messages)
    runs = _runs_of_bitmaps(snapshot.info)
    _add_ranges(node.individual_deleted_messages, runs, snapshot.gaps)
    node.batched_entry_deletion_index_info.extend(snapshot.info.batched_entry_deletion_index_info)
    return node


def node_with_properties(known: ManagedCursorInfo, properties: Mapping[str, str]) -> ManagedCursorInfo:
    node = ManagedCursorInfo()
    node.CopyFrom(known)
    del node.cursor_properties[:]
    for name, value in properties.items():
        node.cursor_properties.add(name=name, value=value)
    return node


def node_with_activity(known: ManagedCursorInfo, last_active_ms: int) -> ManagedCursorInfo:
    node = ManagedCursorInfo()
    node.CopyFrom(known)
    node.last_active = last_active_ms
    return node


def _node(known: ManagedCursorInfo, snapshot: Snapshot) -> ManagedCursorInfo:
    node = ManagedCursorInfo()
    node.CopyFrom(known)  # With the cursor's properties and unknown fields.
    node.mark_delete_ledger_id, node.mark_delete_entry_id = snapshot.mark_delete
    del node.individual_deleted_messages[:]
    del node.batched_entry_deletion_index_info[:]
    del node.properties[:]
    node.properties.extend(snapshot.info.properties)
    return node


def _runs_of_bitmaps(info: PositionInfo) -> Iterator[tuple[Position, Position]]:
    for ledger in info.individual_deleted_message_ranges:
        acked = AckedEntries()
        acked.add_bitmap(bits_of_words(ledger.values))
        for first, last in acked.ranges():
            yield Position(ledger.key, first), Position(ledger.key, last)


# --- reading ----------------------------------------------------------------------------------------------------------


def decode_node(value: bytes) -> ManagedCursorInfo:
    node = parse_message(unpacked(value), ManagedCursorInfo, "a cursor's node")
    if not (node.HasField("mark_delete_ledger_id") and node.HasField("mark_delete_entry_id")):
        if node.cursors_ledger_id == NO_LEDGER:
            raise MalformedMetadataError("a cursor's node names neither a ledger nor a position")
        node.mark_delete_ledger_id, node.mark_delete_entry_id = -1, -1  # Written before Pulsar kept it there.
    return node


def state_in_node(node: ManagedCursorInfo) -> PositionInfo:
    """Returns the state that the node itself has."""
    info = PositionInfo(ledger_id=node.mark_delete_ledger_id, entry_id=node.mark_delete_entry_id)
    info.individual_deleted_messages.extend(node.individual_deleted_messages)
    info.batched_entry_deletion_index_info.extend(node.batched_entry_deletion_index_info)
    info.properties.extend(node.properties)
    return info


def state_in_entry(payload: bytes) -> PositionInfo:
    return parse_message(payload, PositionInfo, "an entry of a cursor's ledger")


def restore_acks(info: PositionInfo, chain: LedgerChain) -> AckState:
    """Leaves out what is not in the chain: ledgers that were trimmed, entries that were lost."""
    acks = AckState(chain, Position(info.ledger_id, info.entry_id))
    for stored in info.individual_deleted_messages:
        for first, last_entry_id in _split(stored, chain):
            acks.add_range(first, last_entry_id)
    for ledger in info.individual_deleted_message_ranges:
        acks.add_bitmap(ledger.key, bits_of_words(ledger.values))
    for batch in info.batched_entry_deletion_index_info:
        _restore_batch(acks, batch)
    acks.settle()
    return acks


def _split(stored: MessageRange, chain: LedgerChain) -> Iterator[tuple[Position, int]]:
    """Splits a run by ledgers: yields each part's first position and last entry id."""
    lower, upper = stored.lower_endpoint, stored.upper_endpoint
    if lower.ledger_id == upper.ledger_id:
        yield Position(lower.ledger_id, lower.entry_id).next, upper.entry_id
        return
    for span in chain.spans:
        if lower.ledger_id <= span.ledger_id <= upper.ledger_id:
            first = lower.entry_id + 1 if span.ledger_id == lower.ledger_id else 0
            last = upper.entry_id if span.ledger_id == upper.ledger_id else span.entries - 1
            yield Position(span.ledger_id, first), last


def _restore_batch(acks: AckState, batch: BatchedEntryDeletionIndexInfo) -> None:
    acks.add_batch(Position(batch.position.ledger_id, batch.position.entry_id), bits_of_words(batch.delete_set))


def long_properties(info: PositionInfo) -> dict[str, int]:
    return {item.name: item.value for item in info.properties}


def cursor_properties(node: ManagedCursorInfo) -> dict[str, str]:
    return {item.name: item.value for item in node.cursor_properties}
