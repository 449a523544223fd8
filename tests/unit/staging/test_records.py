"""Records of staging: there and back, and what is refused."""

from __future__ import annotations

import pytest

from magnetar.errors import StagingError, StagingRecordError
from magnetar.staging.records import EPOCH_MAX, Intent, OwnerRecord, Staged, StagedPart
from magnetar.staging.register import epochs_in, intent_path, owner_of, owner_path

PART = StagedPart("persistent://t/n/x-partition-3", 17, 4, 4_000, 123_456, 0xDEADBEEF)


def test_what_a_task_staged_travels_as_text() -> None:
    staged = Staged("spark/é/1", 7, 3, 2, (PART, PART))
    assert Staged.from_json(staged.to_json()) == staged
    assert Staged.from_json(Staged("o", 0, 0, 0).to_json()).parts == ()


@pytest.mark.parametrize("text", ["", "{}", "[]", '["o",1,2]', '["o",1,2,3,[[1]]]', "nonsense"])
def test_a_message_that_no_task_made_is_refused(text: str) -> None:
    with pytest.raises(StagingRecordError):
        Staged.from_json(text)


def test_an_owners_record_comes_back_and_an_empty_node_is_a_new_owner() -> None:
    record = OwnerRecord(4, 5, "abc", 2, (7, 9), is_job=True, is_passing=True)
    assert OwnerRecord.from_bytes(record.to_bytes()) == record
    assert OwnerRecord.from_bytes(b"") == OwnerRecord()
    with pytest.raises(StagingRecordError):
        OwnerRecord.from_bytes(b"[]")


def test_an_intent_is_in_the_order_of_partitions_and_leaves_out_what_is_empty() -> None:
    def part(ledger_id: int, entries: int = 1) -> StagedPart:
        return StagedPart("t", ledger_id, entries, 1, 1, 0)

    staged = [Staged("o", 1, 2, 0, (part(5),)), Staged("o", 1, 0, 0, (part(9), part(3, 0), part(4)))]
    intent = Intent.of("o", 1, staged)
    assert [each.ledger_id for each in intent.parts] == [9, 4, 5]
    assert Intent.from_bytes(intent.to_bytes()) == intent
    assert intent.digest != Intent.of("o", 1, staged[:1]).digest


def test_an_owners_name_may_be_anything_that_fits() -> None:
    for name in ("spark/1/2", "..", ".", "a b%c", "ü"):
        path = owner_path(name)
        assert path.count("/") == 3
        assert owner_of(path.rpartition("/")[2]) == name
        assert not path.endswith(".")
    for name in ("", "x" * 600):
        with pytest.raises(StagingError):
            owner_path(name)


def test_epochs_sort_as_numbers_and_the_register_is_none() -> None:
    names = [intent_path("o", epoch).rpartition("/")[2] for epoch in (10, 9, EPOCH_MAX)]
    assert epochs_in([*names, "staged"]) == [9, 10, EPOCH_MAX]
    for epoch in (-1, EPOCH_MAX + 1):
        with pytest.raises(StagingError):
            intent_path("o", epoch)
