"""Compaction of messages that were published in chunks: of each key the last whole message, with all its chunks."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.topic.compaction import CompactionChoice
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import Position
from magnetar.wire.pulsar.frames import with_checksum
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import MessageMetadata
from tests.unit.topic.log_world import log_world, text_of
from tests.unit.topic.test_compaction import batch, compacting, keyed

pytestmark = pytest.mark.virtual_time


def chunk(
    uuid: str,
    number: int,
    of: int = 3,
    *,
    key: str | None = "a",
    producer: str | None = None,
    text: str | None = None,
    is_null: bool = False,
) -> bytes:
    """Chunk `number` of a message; its payload names the two. A producer has one message at a time."""
    metadata = MessageMetadata(producer_name=producer or f"producer of {uuid}", sequence_id=0, publish_time=1)
    metadata.uuid, metadata.chunk_id, metadata.num_chunks_from_msg = uuid, number, of
    if key is not None:
        metadata.partition_key = key
    if is_null:
        metadata.null_value = True
    return with_checksum(metadata.SerializeToString(), (f"{uuid}{number}" if text is None else text).encode())


def chunks(uuid: str, of: int = 3, **fields: object) -> list[bytes]:
    return [chunk(uuid, number, of, **fields) for number in range(of)]  # type: ignore[arg-type]


async def test_all_chunks_of_a_keys_last_message_stay_and_those_of_older_ones_go() -> None:
    async with log_world() as world:
        topic = await compacting(world)
        await topic.publish(*chunks("x"), keyed("b", "b0"), *chunks("y"), *chunks("z", key="c"), keyed("c", "c1"))
        result = await topic.compaction.run(topic.cursor)
        assert [text_of(entry) for entry in await topic.view()] == ["b0", "y0", "y1", "y2", "c1"]
        assert (result.entries_written, result.keys) == (5, 3)


async def test_chunks_of_several_producers_between_each_other_are_told_apart() -> None:
    async with log_world() as world:
        topic = await compacting(world)
        x, y, z = chunks("x"), chunks("y", key="b"), chunks("z")
        await topic.publish(x[0], y[0], x[1], z[0], y[1], z[1], z[2], x[2], y[2])
        await topic.compaction.run(topic.cursor)
        kept = [text_of(entry) for entry in await topic.view()]
        assert kept == ["x0", "y0", "x1", "y1", "x2", "y2"], "x is a's last message: its last chunk is after z's"


async def test_chunks_in_several_ledgers_stay_together() -> None:
    async with log_world() as world:
        topic = await compacting(world)
        for body in (*chunks("x"), *chunks("y")):
            await topic.publish(body)
            await topic.log.roll()
        await topic.compaction.run(topic.cursor)
        assert [text_of(entry) for entry in await topic.view()] == ["y0", "y1", "y2"]
        assert len({entry.position.ledger_id for entry in await topic.view()}) == 3
        await topic.log.trim(topic.cursor.mark_delete)
        await topic.publish(keyed("b", "b0"))
        await topic.compaction.run(topic.cursor)
        assert [text_of(entry) for entry in await topic.view()] == ["y0", "y1", "y2", "b0"]


async def test_a_message_whose_last_chunk_comes_after_the_compaction_is_whole_and_the_one_before_it_stays() -> None:
    async with log_world() as world:
        topic = await compacting(world)
        x = chunks("x")
        await topic.publish(keyed("a", "a0"), x[0], x[1])
        await topic.compaction.run(topic.cursor)
        assert [text_of(entry) for entry in await topic.view()] == ["a0", "x0", "x1"]
        await topic.publish(keyed("a", "a1"), x[2])
        assert [text_of(entry) for entry in await topic.view()] == ["a0", "x0", "x1", "a1", "x2"]
        await topic.compaction.run(topic.cursor)
        assert [text_of(entry) for entry in await topic.view()] == ["x0", "x1", "x2"]


async def test_an_incomplete_message_goes_when_its_producer_has_published_something_else() -> None:
    async with log_world() as world:
        topic = await compacting(world)
        await topic.publish(keyed("a", "a0"), chunk("x", 0, producer="p1"), chunk("y", 0, producer="p2"))
        await topic.publish(*chunks("z", key="b", producer="p1"))
        await topic.compaction.run(topic.cursor)
        assert [text_of(entry) for entry in await topic.view()] == ["a0", "y0", "z0", "z1", "z2"]
        await topic.publish(chunk("x", 1, producer="p1"), chunk("x", 2, producer="p1"))
        await topic.compaction.run(topic.cursor)
        assert [text_of(entry) for entry in await topic.view()] == ["a0", "y0", "z0", "z1", "z2"]


async def test_a_message_that_was_sent_again_stays_once() -> None:
    async with log_world() as world:
        topic = await compacting(world)
        x = chunks("x")
        await topic.publish(x[0], x[1], x[0], x[1], x[1], x[2], x[1], x[2])
        await topic.compaction.run(topic.cursor)
        view = await topic.view()
        assert [text_of(entry) for entry in view] == ["x0", "x1", "x2"]
        assert [entry.position for entry in view] == [topic.heard.positions[at] for at in (2, 3, 5)]


async def test_a_chunk_whose_predecessor_is_missing_is_no_message() -> None:
    async with log_world() as world:
        topic = await compacting(world)
        await topic.publish(keyed("a", "a0"), chunk("x", 0), chunk("x", 2), chunk("y", 2))
        await topic.compaction.run(topic.cursor)
        assert [text_of(entry) for entry in await topic.view()] == ["a0"]


@pytest.mark.parametrize("how", [{"is_null": True}, {"text": ""}], ids=["null", "empty"])
async def test_a_message_in_chunks_without_a_payload_deletes_its_key_and_all_its_chunks(how: dict[str, object]) -> None:
    async with log_world() as world:
        topic = await compacting(world)
        await topic.publish(*chunks("x"), keyed("b", "b0"), *chunks("y", 2, **how))
        assert (await topic.compaction.run(topic.cursor)).keys == 1
        assert [text_of(entry) for entry in await topic.view()] == ["b0"]


@pytest.mark.parametrize("retain", [False, True])
async def test_chunks_without_a_key_stay_together_only_if_configured(retain: bool) -> None:
    async with log_world() as world:
        topic = await compacting(world)
        topic.compaction._config = type(world.config)(
            ensemble_size=1, write_quorum=1, ack_quorum=1, compaction_retain_null_key=retain
        )
        await topic.publish(*chunks("x", key=None), *chunks("y", 2))
        await topic.compaction.run(topic.cursor)
        kept = ["x0", "x1", "x2"] if retain else []
        assert [text_of(entry) for entry in await topic.view()] == [*kept, "y0", "y1"]


async def test_a_chunked_message_and_a_batch_of_one_key_replace_each_other() -> None:
    async with log_world() as world:
        topic = await compacting(world)
        await topic.publish(batch(("a", "1"), ("b", "2")), *chunks("x"), *chunks("y", key="c"), batch(("c", "3")))
        await topic.compaction.run(topic.cursor)
        view = await topic.view()
        assert [text_of(entry) for entry in view[1:4]] == ["x0", "x1", "x2"]
        assert list(view[0].head.metadata.compacted_batch_indexes) == [1]
        assert list(view[4].head.metadata.compacted_batch_indexes) == [0]
        assert len(view) == 5


# --- any mixture ------------------------------------------------------------------------------------------------------

_Sent = tuple[str, int, int]  # Key, chunks of the message, and how many of them are published.
_messages = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(1, 3), st.integers(0, 3)).map(lambda m: (m[0], m[1], min(m[1:]))),
    max_size=4,
)


@settings(max_examples=60)
@given(st.lists(_messages, min_size=1, max_size=3), st.data(), st.integers(0, 20))
def test_a_reader_of_the_compacted_view_gets_the_last_value_of_every_key(
    producers: list[list[_Sent]], data: st.DataObject, cut: int
) -> None:
    """Producers publish messages in chunks, some of which they never finish, at the same time. Compacted once before
    and once at the end, the view has what a client assembles from the topic, without what was replaced."""
    queues = [
        [
            chunk(f"{p}-{m}-", n, of, key=key, producer=str(p))
            for m, (key, of, sent) in enumerate(sent)
            for n in range(sent)
        ]
        for p, sent in enumerate(producers)
    ]
    entries: list[LogEntry] = []
    while any(queues):
        queue = data.draw(st.sampled_from([queue for queue in queues if queue]))
        entries.append(LogEntry(Position(1, len(entries)), queue.pop(0)))
    once = [*compacted(entries[:cut]), *entries[cut:]]
    assert last_values(once) == last_values(entries)
    twice = compacted(once)
    assert last_values(twice) == last_values(entries)
    assert sorted(whole_messages(twice)) == sorted((key, uuid) for key, uuid in last_values(entries).items())


def compacted(entries: list[LogEntry]) -> list[LogEntry]:
    choice = CompactionChoice(keeps_null_keys=False)
    for entry in entries:
        choice.note(entry)
    return [entry for entry in entries if choice.what_is_left(entry) is not None]


def whole_messages(entries: list[LogEntry]) -> list[tuple[str, str]]:
    """Key and uuid of each, as a client assembles them."""
    seen: dict[str, int] = defaultdict(int)
    found = []
    for entry in entries:
        metadata = entry.head.metadata
        assert metadata.chunk_id == seen[metadata.uuid], "a client would give the message up"
        seen[metadata.uuid] += 1
        if seen[metadata.uuid] == metadata.num_chunks_from_msg:
            found.append((metadata.partition_key, metadata.uuid))
    return found


def last_values(entries: list[LogEntry]) -> dict[str, str]:
    return dict(whole_messages(entries))
