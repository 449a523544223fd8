"""Topic compaction: the last message of each key, readable by the topic's own positions."""

from __future__ import annotations

import asyncio
import gc
import struct
from collections.abc import Mapping
from typing import Any

import pytest

from magnetar.errors import CompactionError, MalformedEntryError
from magnetar.topic import compaction
from magnetar.topic.compaction import LEDGER_PROPERTY, TopicCompaction
from magnetar.topic.entry_format.messages import (
    decode_compacted,
    encode_compacted,
    filtered_batch,
    keys_of,
    last_batch_index,
)
from magnetar.topic.log.log import TopicLog
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import EARLIEST, Position
from magnetar.wire.bookkeeper.digests import DigestType
from magnetar.wire.compression import compress, decompress
from magnetar.wire.pulsar.entry import encode_batched_message, messages_of_batch
from magnetar.wire.pulsar.frames import verify_checksum, with_checksum
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import NONE, ZLIB, MessageIdData, MessageMetadata, SingleMessageMetadata
from tests.unit.broker import golden
from tests.unit.topic.log_world import Heard, LogWorld, drop_tail, log_world, message, text_of
from tests.unit.wire.pulsar.samples import spoiled

pytestmark = pytest.mark.virtual_time

NAME = "persistent://public/default/orders"


class FakeCursor:
    """Remembers, and stores when the test wants it."""

    def __init__(self) -> None:
        self.mark_delete = EARLIEST
        self.long_properties: Mapping[str, int] = {}
        self.stored: tuple[Position, Mapping[str, int]] | None = None

    def set_long_properties(self, properties: Mapping[str, int]) -> None:
        self.long_properties = properties

    def acknowledge_to(self, position: Position) -> None:
        self.mark_delete = position

    async def flush(self) -> None:
        self.stored = (self.mark_delete, self.long_properties)


def keyed(key: str, text: str) -> bytes:
    return message(text, key=key)


def batch(*pairs: tuple[str | None, str], compression: int = NONE) -> bytes:
    """One entry with these keys and payloads."""
    parts = []
    for key, text in pairs:
        single = SingleMessageMetadata()
        if key is not None:
            single.partition_key = key
        parts.append(encode_batched_message(single, text.encode()))
    payload = b"".join(parts)
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=len(pairs))
    metadata.compression = compression  # type: ignore[assignment]
    metadata.uncompressed_size = len(payload)
    return with_checksum(metadata.SerializeToString(), compress(compression, payload))


def pairs_of(entry: LogEntry) -> list[tuple[str, str]]:
    """What a client makes of it."""
    head = entry.head
    payload = memoryview(entry.data)[head.payload_offset :]
    if not head.metadata.HasField("num_messages_in_batch"):
        return [(head.metadata.partition_key, bytes(payload).decode())]
    plain = decompress(head.metadata.compression, payload, head.metadata.uncompressed_size)
    return [
        (single.metadata.partition_key, bytes(single.payload).decode())
        for single in messages_of_batch(plain, head.metadata.num_messages_in_batch)
        if not single.metadata.compacted_out
    ]


class Compacting:
    """A topic and its compaction."""

    def __init__(self, world: LogWorld, log: TopicLog, heard: Heard) -> None:
        self.world, self.log, self.heard = world, log, heard
        self.cursor = FakeCursor()
        self.compaction = TopicCompaction(NAME, log, world.context, world.config)

    async def publish(self, *bodies: bytes) -> None:
        wanted = len(self.heard.appended) + len(bodies)
        for body in bodies:
            self.log.append(body, 1, None)
        await self.heard.until(wanted)

    async def view(self, entries_max: int = 3) -> list[LogEntry]:
        """The compacted view from its beginning, as a dispatcher goes through it."""
        place, found = EARLIEST, []
        while entries := await self.compaction.read(place, entries_max, 2**20):
            found += entries
            place = found[-1].position.next
        return found

    async def pairs(self) -> list[tuple[str, str]]:
        return [pair for entry in await self.view() for pair in pairs_of(entry)]


async def compacting(world: LogWorld, **settings: Any) -> Compacting:
    log, heard = await world.open(**settings)
    return Compacting(world, log, heard)


async def test_only_the_last_message_of_each_key_is_left_in_the_order_of_the_topic() -> None:
    async with log_world() as world:
        topic = await compacting(world)
        await topic.publish(keyed("a", "1"), keyed("b", "2"), keyed("a", "3"), keyed("c", "4"), keyed("b", "5"))
        result = await topic.compaction.run(topic.cursor)
        assert await topic.pairs() == [("a", "3"), ("c", "4"), ("b", "5")]
        assert [entry.position for entry in await topic.view()] == [topic.heard.positions[at] for at in (2, 3, 4)]
        assert (result.entries_read, result.entries_written, result.keys) == (5, 3, 3)


async def test_keys_that_are_not_utf_8_are_compacted_as_any_other() -> None:
    async with log_world() as world:
        topic = await compacting(world)
        alone, in_batch, last = keyed("KKKK", "1"), batch(("KKKK", "2"), ("b", "3")), keyed("KKKK", "4")
        await topic.publish(*map(spoiled, (alone, in_batch, last)))
        result = await topic.compaction.run(topic.cursor)
        found = [(key.key, key.size) for entry in await topic.view() for key in keys_of(entry)]
        assert found == [("b", 1), (b"\xff\xfe\x80k", 1)]
        assert result.keys == 2


async def test_two_keys_that_are_not_utf_8_are_two_keys_though_they_look_alike() -> None:
    async with log_world() as world:
        topic = await compacting(world)
        one = keyed("KKKK", "1").replace(b"KKKK", b"\xff\xfe\x80k")
        other = keyed("KKKK", "2").replace(b"KKKK", b"\xfd\xfe\x80k")
        in_batch = batch(("KKKK", "3"), ("b", "4")).replace(b"KKKK", b"\xfc\xfe\x80k")
        await topic.publish(one, other, in_batch)
        assert (await topic.compaction.run(topic.cursor)).keys == 4
        assert [text for _, text in await topic.pairs()] == ["1", "2", "3", "4"]


async def test_view_goes_on_with_the_topic_behind_what_is_compacted() -> None:
    async with log_world() as world:
        topic = await compacting(world)
        await topic.publish(keyed("a", "1"), keyed("a", "2"))
        await topic.compaction.run(topic.cursor)
        await topic.publish(keyed("a", "3"), keyed("b", "4"))
        assert await topic.pairs() == [("a", "2"), ("a", "3"), ("b", "4")]
        behind = topic.heard.positions[2]
        found = topic.compaction.read_nowait(behind, 9, 2**20)
        assert found is not None
        assert [text_of(entry) for entry in found] == ["3", "4"]
        assert topic.compaction.read_nowait(EARLIEST, 9, 2**20) is None


async def test_message_without_payload_deletes_its_key() -> None:
    async with log_world() as world:
        topic = await compacting(world)
        await topic.publish(keyed("a", "1"), keyed("b", "2"), keyed("a", ""))
        await topic.compaction.run(topic.cursor)
        assert await topic.pairs() == [("b", "2")]


@pytest.mark.parametrize("bodies", [(keyed("b", "2"), keyed("a", "")), (keyed("a", ""),)], ids=["some", "none"])
async def test_who_has_read_all_that_deletions_left_is_at_the_end_without_reading(bodies: tuple[bytes, ...]) -> None:
    async with log_world() as world:
        topic = await compacting(world)
        await topic.publish(keyed("a", "1"), *bodies)
        await topic.compaction.run(topic.cursor)
        await topic.view()
        behind = topic.heard.positions[len(bodies)]  # The deletion's position, which is before the end of the topic.
        assert topic.compaction.read_nowait(behind, 9, 2**20) == []
        await topic.publish(keyed("c", "3"))
        found = topic.compaction.read_nowait(behind, 9, 2**20)
        assert found is not None
        assert [text_of(entry) for entry in found] == ["3"]


@pytest.mark.parametrize("retain", [False, True])
async def test_messages_without_a_key_are_kept_only_if_told_so(retain: bool) -> None:
    async with log_world() as world:
        topic = await compacting(world)
        topic.compaction._config = type(world.config)(
            ensemble_size=1, write_quorum=1, ack_quorum=1, compaction_retain_null_key=retain
        )
        await topic.publish(message("no key"), keyed("a", "1"), batch((None, "none"), ("a", "2")))
        await topic.compaction.run(topic.cursor)
        kept = [("", "no key"), ("", "none"), ("a", "2")] if retain else [("a", "2")]
        assert await topic.pairs() == kept


@pytest.mark.parametrize("compression", [NONE, ZLIB])
async def test_batch_keeps_the_places_of_what_is_left(compression: int) -> None:
    async with log_world() as world:
        topic = await compacting(world)
        await topic.publish(batch(("a", "1"), ("b", "2"), ("c", "3"), compression=compression), keyed("b", "4"))
        await topic.compaction.run(topic.cursor)
        first, second = await topic.view()
        assert pairs_of(first) == [("a", "1"), ("c", "3")]
        assert pairs_of(second) == [("b", "4")]
        assert list(first.head.metadata.compacted_batch_indexes) == [0, 2]
        assert first.head.metadata.num_messages_in_batch == 3
        assert first.head.index == 0  # The broker's header is kept.
        assert verify_checksum(memoryview(first.data)[first.head.body_offset :])
        await topic.publish(keyed("c", "5"))
        await topic.compaction.run(topic.cursor)  # Reads what it has filtered itself.
        assert await topic.pairs() == [("a", "1"), ("b", "4"), ("c", "5")]


async def test_compacting_again_needs_nothing_that_was_trimmed() -> None:
    async with log_world() as world:
        topic = await compacting(world)
        for round_number in range(4):
            await topic.publish(*(keyed(f"k{number}", f"{round_number}") for number in range(round_number, 10)))
            await topic.compaction.run(topic.cursor)
            await topic.log.roll()
            await topic.log.trim(topic.cursor.mark_delete)
            drop_tail(topic.log)
        assert topic.log.chain.entries == 0
        assert await topic.pairs() == [("k0", "0"), ("k1", "1"), ("k2", "2"), *((f"k{n}", "3") for n in range(3, 10))]
        assert topic.compaction.compacted is not None
        left = [topic.log.chain.spans[0].ledger_id, topic.compaction.compacted.ledger_id]
        assert sorted(await world.ledgers()) == sorted(left)


async def test_cursor_names_the_ledger_and_stands_at_what_was_compacted() -> None:
    async with log_world() as world:
        topic = await compacting(world)
        await topic.publish(keyed("a", "1"), keyed("a", "2"))
        result = await topic.compaction.run(topic.cursor)
        assert topic.cursor.stored == (topic.heard.positions[1], {LEDGER_PROPERTY: result.ledger_id})
        metadata = await world.client.metadata(result.ledger_id)
        assert metadata.digest_type is DigestType.CRC32
        apaches = golden.custom_metadata("compacted")
        assert dict(metadata.custom_metadata) | {"pulsar/compactedTo": b""} == apaches | {"pulsar/compactedTo": b""}
        compacted_to = MessageIdData.FromString(metadata.custom_metadata["pulsar/compactedTo"])
        assert (compacted_to.ledgerId, compacted_to.entryId) == topic.heard.positions[1]


async def test_compacted_view_is_restored_from_the_cursor() -> None:
    async with log_world() as world:
        topic = await compacting(world)
        await topic.publish(keyed("a", "1"), keyed("a", "2"))
        await topic.compaction.run(topic.cursor)
        again = TopicCompaction(NAME, topic.log, world.context, world.config)
        await again.restore(topic.cursor)
        assert [pairs_of(entry) for entry in await again.read(EARLIEST, 9, 2**20)] == [[("a", "2")]]
        fresh = TopicCompaction(NAME, topic.log, world.context, world.config)
        await fresh.restore(FakeCursor())
        assert len(await fresh.read(EARLIEST, 9, 2**20)) == 2
        await again.delete()
        assert len(await again.read(EARLIEST, 9, 2**20)) == 2


async def test_nothing_new_is_not_compacted_again() -> None:
    async with log_world() as world:
        topic = await compacting(world)
        assert (await topic.compaction.run(topic.cursor)).ledger_id == -1
        await topic.publish(keyed("a", "1"))
        assert (await topic.compaction.run(topic.cursor)).ledger_id >= 0
        assert (await topic.compaction.run(topic.cursor)).ledger_id == -1


async def test_two_compactions_do_not_run_at_once() -> None:
    async with log_world() as world:
        topic = await compacting(world)
        topic.compaction.is_running = True
        with pytest.raises(CompactionError):
            await topic.compaction.run(topic.cursor)


async def test_compaction_that_fails_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with log_world() as world:
        topic = await compacting(world)
        await topic.publish(keyed("a", "1"), keyed("b", "2"))
        ledgers = await world.ledgers()

        def broken(*_args: object) -> bytes:
            raise MalformedEntryError("planted")

        monkeypatch.setattr("magnetar.topic.compaction.encode_compacted", broken)
        with pytest.raises(MalformedEntryError):
            await topic.compaction.run(topic.cursor)
        assert await world.ledgers() == ledgers
        assert topic.cursor.stored is None
        assert not topic.compaction.is_running


async def test_compaction_that_fails_while_it_writes_leaves_no_unretrieved_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context))
    async with log_world() as world:
        topic = await compacting(world)
        await topic.publish(*(keyed(str(number), "1") for number in range(9)))
        encode = compaction.encode_compacted

        def breaks_in_the_middle(position: Position, data: Any) -> bytes:
            if position == topic.heard.positions[5]:
                raise MalformedEntryError("planted")
            return encode(position, data)

        monkeypatch.setattr(compaction, "encode_compacted", breaks_in_the_middle)
        with pytest.raises(MalformedEntryError):
            await topic.compaction.run(topic.cursor)
        gc.collect()
        assert complaints == []


async def test_every_position_is_found_in_a_compacted_ledger() -> None:
    async with log_world() as world:
        topic = await compacting(world)
        await topic.publish(*(keyed(f"k{number % 7}", str(number)) for number in range(40)))
        await topic.compaction.run(topic.cursor)
        kept = [entry.position for entry in await topic.view()]
        for position in topic.heard.positions:
            expected = next((place for place in kept if place >= position), None)
            found = await topic.compaction.read(position, 1, 1)
            assert [entry.position for entry in found] == ([expected] if expected else [])


# --- the stored form --------------------------------------------------------------------------------------------------


def test_stored_form_is_that_of_apaches_raw_message() -> None:
    stored = encode_compacted(Position(5, 300), b"data")
    assert stored == bytes.fromhex("00000005080510ac0200000004") + b"data"
    entry = decode_compacted(stored)
    assert (entry.position, bytes(entry.data)) == ((5, 300), b"data")


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"\x00\x00",
        struct.pack(">i", 9) + b"short",
        struct.pack(">i", -1),
        bytes(8),
        struct.pack(">i", 1) + b"\xff" + bytes(4),
    ],
)
def test_damaged_entry_of_a_compacted_ledger_is_malformed(stored: bytes) -> None:
    with pytest.raises(MalformedEntryError):
        decode_compacted(stored)


def test_encrypted_batch_is_one_message() -> None:
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=3)
    metadata.partition_key = "a"
    metadata.encryption_keys.add(key="k", value=b"v")
    entry = LogEntry(Position(1, 1), with_checksum(metadata.SerializeToString(), b"sealed"))
    assert keys_of(entry) == [(-1, "a", 6)]


@pytest.mark.parametrize("is_listed", [True, False], ids=["listed", "not listed"])
def test_last_message_of_a_batch_is_the_last_that_was_not_compacted_out(is_listed: bool) -> None:
    """Older brokers of Apache's mark what is compacted out, and do not list what is left."""
    whole = LogEntry(Position(1, 1), batch(("a", "1"), ("b", "2"), ("c", "3")))
    assert last_batch_index(whole) == 2
    data = filtered_batch(whole, lambda _index, key: key != "c")
    assert data is not None
    filtered = LogEntry(Position(1, 1), data)
    if not is_listed:
        metadata = MessageMetadata.FromString(filtered.head.metadata.SerializeToString())
        del metadata.compacted_batch_indexes[:]
        payload = data[filtered.head.payload_offset :]
        filtered = LogEntry(Position(1, 1), with_checksum(metadata.SerializeToString(), payload))
    assert last_batch_index(filtered) == 1
    assert last_batch_index(LogEntry(Position(1, 1), keyed("a", "1"))) == -1


def test_batch_of_which_nothing_is_left_is_nothing() -> None:
    entry = LogEntry(Position(1, 1), batch(("a", "1"), ("b", "2")))
    assert filtered_batch(entry, lambda _index, _key: False) is None
