"""What auto-recovery keeps in the metadata beside its marks."""

from __future__ import annotations

import pytest

from magnetar.errors import MalformedMetadataError
from magnetar.ids import BookieId, LedgerId
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.bookkeeper.recovery_nodes import (
    REASONS_MAX,
    BookieSet,
    MarkNote,
    MarkState,
    PeriodicCheck,
    RecoveryNotes,
    RecoveryPaths,
    decode_delay,
    decode_vote,
    encode_delay,
    encode_vote,
    is_disabled,
    request_audit,
    set_disabled,
    vote_number,
)
from magnetar.metadata.bookkeeper.underreplication import UnderreplicationMarks, lock_path, marked_ledger
from magnetar.metadata.store import MetadataStore

PATHS = BookKeeperPaths("/ledgers")
NODES = RecoveryPaths(PATHS)
LEDGER = LedgerId(0x1_0000_0007)
A = BookieId("a:1")


async def test_lock_is_the_ephemeral_node_of_apache_with_the_workers_name(store: MetadataStore) -> None:
    marks = UnderreplicationMarks(store, PATHS)
    await marks.prepare()
    assert await marks.lock(LedgerId(5), "worker-1")
    node = await store.get("/ledgers/underreplication/locks/urL0000000005")
    assert node is not None
    assert node.value == b'bookieId: "worker-1"\n'
    assert node.owner == store.session.id
    assert await marks.holder(LedgerId(5)) == "worker-1"
    assert not await marks.lock(LedgerId(5), "worker-2")
    await marks.unlock(LedgerId(5))
    assert await marks.holder(LedgerId(5)) is None


async def test_marks_are_listed_ascending_and_empty_directories_go_with_the_last_one(store: MetadataStore) -> None:
    marks = UnderreplicationMarks(store, PATHS)
    await marks.prepare()
    for ledger in (LEDGER, LedgerId(3), LedgerId(70_000)):
        await marks.mark(ledger, [A], 1)
    assert [each async for each in marks.list()] == [3, 70_000, LEDGER]
    for ledger in (LEDGER, LedgerId(3), LedgerId(70_000)):
        assert await marks.lock(ledger, "worker")
        assert await marks.clear(ledger, 0)
    assert await store.children("/ledgers/underreplication/ledgers") == []


async def test_mark_that_was_renewed_is_not_cleared(store: MetadataStore) -> None:
    marks = UnderreplicationMarks(store, PATHS)
    await marks.prepare()
    await marks.mark(LEDGER, [A], 1)
    assert await marks.lock(LEDGER, "worker")
    found = await marks.read_versioned(LEDGER)
    assert found is not None
    await marks.mark(LEDGER, [BookieId("b:1")], 2)
    assert not await marks.clear(LEDGER, found.version)
    assert await marks.read(LEDGER) is not None


async def test_mark_that_is_made_again_for_the_same_bookie_during_a_repair_is_not_cleared(store: MetadataStore) -> None:
    marks = UnderreplicationMarks(store, PATHS)
    await marks.prepare()
    await marks.mark(LEDGER, [A], 1)
    assert not await marks.mark(LEDGER, [A], 2)
    found = await marks.read_versioned(LEDGER)
    assert found is not None
    assert found.version == 0  # No worker has it: it is written once.
    assert await marks.lock(LEDGER, "worker")
    assert not await marks.mark(LEDGER, [A], 3)
    assert not await marks.clear(LEDGER, found.version)
    renewed = await marks.read_versioned(LEDGER)
    assert renewed is not None
    assert renewed.value == found.value


async def test_mark_is_not_cleared_without_its_lock(store: MetadataStore) -> None:
    marks = UnderreplicationMarks(store, PATHS)
    await marks.prepare()
    await marks.mark(LEDGER, [A], 1)
    assert not await marks.clear(LEDGER, 0)
    assert await marks.read(LEDGER) is not None


async def test_mark_is_not_cleared_if_the_ledger_has_changed_since_the_look(store: MetadataStore) -> None:
    marks = UnderreplicationMarks(store, PATHS)
    await marks.prepare()
    await store.create(PATHS.ledger(LEDGER), b"ledger", make_parents=True)
    await marks.mark(LEDGER, [A], 1)
    assert await marks.lock(LEDGER, "worker")
    await store.put(PATHS.ledger(LEDGER), b"closed meanwhile")
    assert not await marks.clear(LEDGER, 0, ledger_version=0)
    assert await marks.read(LEDGER) is not None
    assert await marks.clear(LEDGER, 0, ledger_version=1)


def test_only_names_of_marks_name_a_ledger() -> None:
    assert marked_ledger("urL0000000005") == 5
    assert marked_ledger("urL4294967303") == LEDGER
    assert [marked_ledger(name) for name in ("urL5", "L0000000005", "urL99999999999999999999", "0000")] == [None] * 4
    assert lock_path(PATHS, LEDGER) == "/ledgers/underreplication/locks/urL4294967303"


def test_delay_is_a_decimal_number_as_apache_writes_it() -> None:
    assert encode_delay(3_600) == b"3600"
    assert decode_delay(b"3600") == 3_600
    for wrong in (b"", b"-1", b"1.5", b"soon", b"99999999999"):
        with pytest.raises(MalformedMetadataError):
            decode_delay(wrong)


def test_times_of_checks_are_the_bytes_that_apache_writes() -> None:
    for check in PeriodicCheck:
        value = check.encode(1_700_000_000_000)
        assert value == b"\x08\x80\xd0\x95\xff\xbc1"  # Field 1 as a varint.
        assert check.decode(value) == 1_700_000_000_000
        assert check.decode(b"") is None
        assert check.decode(b"\xff") is None
    assert PeriodicCheck.ALL_LEDGERS.path(NODES) == "/ledgers/underreplication/checkallledgersctime"
    assert PeriodicCheck.PLACEMENT.path(NODES) == "/ledgers/underreplication/placementpolicycheckctime"
    assert PeriodicCheck.REPLICAS.path(NODES) == "/ledgers/underreplication/replicascheckctime"


def test_vote_of_another_kind_is_no_vote() -> None:
    assert decode_vote(encode_vote("b:1")) == "b:1"
    assert decode_vote(b"\xff nonsense {") == ""
    assert [vote_number(name) for name in ("V_0000000012", "V_", "X_1", "V_-1")] == [12, None, None, None]


async def test_recovery_is_disabled_by_a_node_and_enabled_without_it(store: MetadataStore) -> None:
    await UnderreplicationMarks(store, PATHS).prepare()
    assert await set_disabled(store, NODES, True)
    assert not await set_disabled(store, NODES, True)
    assert await store.get("/ledgers/underreplication/disable") is not None
    assert await is_disabled(store, NODES)
    assert await set_disabled(store, NODES, False)
    assert not await set_disabled(store, NODES, False)
    assert not await is_disabled(store, NODES)


async def test_audit_is_requested_by_writing_the_delay_as_it_is(store: MetadataStore) -> None:
    await request_audit(store, NODES, 7)
    first = await store.get(NODES.delay)
    await request_audit(store, NODES, 9)
    second = await store.get(NODES.delay)
    assert first is not None
    assert second is not None
    assert first.value == second.value == b"7"
    assert second.version == first.version + 1


async def test_note_is_kept_beside_the_mark_and_merges_reasons(store: MetadataStore) -> None:
    notes = RecoveryNotes(store, NODES)
    await notes.change(LEDGER, lambda note: note.with_reasons({A: "lost"}, 5))
    await notes.change(LEDGER, lambda note: note.with_reasons({A: "again", BookieId("b:1"): "draining"}, 9))
    note = await notes.read(LEDGER)
    assert note == MarkNote(reasons={"a:1": "lost", "b:1": "draining"}, marked_ms=5, since_ms=5)
    await notes.delete(LEDGER)
    assert await notes.read(LEDGER) is None
    assert await store.children(NODES.notes) == []


def test_note_has_a_bound_and_survives_any_value() -> None:
    many = {BookieId(f"b{number}:1"): "lost" for number in range(100)}
    assert len(MarkNote().with_reasons(many, 1).reasons) == REASONS_MAX
    note = MarkNote(state=MarkState.UNREPAIRABLE, entries="3-7", bookies={"a:1": 12}, mark_version=4)
    assert MarkNote.decode(note.encode()) == note
    for broken in (b"", b"[]", b'{"state": "unheard of"}', b'{"reasons": 5}', b"\xff"):
        assert MarkNote.decode(broken) == MarkNote()


async def test_set_of_bookies_is_one_node_for_each(store: MetadataStore) -> None:
    lost = BookieSet(store, NODES.lost)
    assert await lost.read() == []
    assert await lost.add(A, 1)
    assert not await lost.add(A, 2)
    assert await lost.read() == [A]
    assert await lost.discard(A)
    assert not await lost.discard(A)
