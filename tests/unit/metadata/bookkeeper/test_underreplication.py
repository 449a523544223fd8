"""Marks of under-replicated ledgers, as Apache's nodes read and write them."""

from __future__ import annotations

import pytest

from magnetar.errors import MalformedMetadataError, UnsupportedLayoutError
from magnetar.ids import BookieId, LedgerId
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.bookkeeper.underreplication import (
    Mark,
    UnderreplicationMarks,
    decode_mark,
    encode_mark,
    mark_path,
)
from magnetar.metadata.store import MetadataStore

PATHS = BookKeeperPaths("/ledgers")
A, B = BookieId("10.0.0.1:3181"), BookieId("b-2")


@pytest.mark.parametrize(
    ("ledger_id", "path"),
    [
        (5, "/ledgers/underreplication/ledgers/0000/0000/0000/0005/urL0000000005"),
        (0x7AFEBEEF0000FEED, "/ledgers/underreplication/ledgers/7afe/beef/0000/feed/urL8862731050418241261"),
    ],
)
def test_a_mark_lies_below_the_hexadecimal_id(ledger_id: int, path: str) -> None:
    assert mark_path(PATHS, LedgerId(ledger_id)) == path


def test_a_mark_is_the_text_that_apache_writes() -> None:
    mark = Mark((A, B), 1_700_000_000_000)
    assert encode_mark(mark) == b'replica: "10.0.0.1:3181"\nreplica: "b-2"\nctime: 1700000000000\n'
    assert decode_mark(encode_mark(mark)) == mark
    assert decode_mark(b'replica: "b-2"\n') == Mark((B,))


@pytest.mark.parametrize("value", [b"nonsense", b"\xff", b'replica: "a b"\n'])
def test_a_damaged_mark_is_refused(value: bytes) -> None:
    with pytest.raises(MalformedMetadataError):
        decode_mark(value)


async def test_the_tree_is_made_once_and_a_mark_is_stored(store: MetadataStore) -> None:
    marks = UnderreplicationMarks(store, PATHS)
    await marks.prepare()
    await marks.prepare()
    layout = await store.get("/ledgers/underreplication/LAYOUT")
    assert layout is not None
    assert layout.value == b'type: "BASIC"\nversion: 1\n'
    assert await store.children("/ledgers/underreplication") == ["LAYOUT", "ledgers", "locks"]
    assert await marks.mark(LedgerId(7), [A], 1)
    assert await marks.read(LedgerId(7)) == Mark((A,), 1)
    assert await marks.read(LedgerId(8)) is None


async def test_a_mark_that_is_there_gets_only_the_bookies_that_are_new(store: MetadataStore) -> None:
    marks = UnderreplicationMarks(store, PATHS)
    await marks.mark(LedgerId(7), [A], 1)
    assert not await marks.mark(LedgerId(7), [A], 2)
    assert await marks.read(LedgerId(7)) == Mark((A,), 1)
    assert await marks.mark(LedgerId(7), [B, A], 3)
    assert await marks.read(LedgerId(7)) == Mark((A, B), 3)


async def test_a_tree_of_another_kind_is_left_alone(store: MetadataStore) -> None:
    await store.create("/ledgers/underreplication/LAYOUT", b'type: "OTHER"\nversion: 9\n', make_parents=True)
    with pytest.raises(UnsupportedLayoutError, match="OTHER 9"):
        await UnderreplicationMarks(store, PATHS).prepare()
