"""Appending to a topic's log on real bookies, while nothing fails."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.errors import EntryTooLargeError, LogBusyError, TopicFencedError, TopicNotFoundError
from magnetar.topic.position import Position
from magnetar.wire.bookkeeper.digests import DigestType
from magnetar.wire.bookkeeper.frames import FRAME_BYTES_MAX
from tests.unit.broker import golden
from tests.unit.topic.log_world import TOPIC, log_world, message, read_all, text_of

pytestmark = pytest.mark.virtual_time


async def test_appends_are_acknowledged_in_order_with_consecutive_positions() -> None:
    async with log_world() as world:
        log, heard = await world.open()
        await world.written(log, heard, 50)
        assert heard.tokens == list(range(50))
        ledger_id = heard.positions[0].ledger_id
        assert heard.positions == [Position(ledger_id, number) for number in range(50)]
        assert log.last_confirmed == heard.positions[-1]


async def test_entry_is_stored_behind_a_header_with_index_and_time() -> None:
    async with log_world(wall_ms=lambda: 1_700_000_000_000) as world:
        log, heard = await world.open()
        await world.written(log, heard, 2, batch=3)
        first, second = await read_all(log)
        assert [first.head.index, second.head.index] == [2, 5]
        assert first.head.broker_ms == 1_700_000_000_000
        assert bytes(memoryview(first.data)[first.head.body_offset :]) == message("m0", batch=3)
        assert first.messages == 3


async def test_appended_buffer_may_be_reused_at_once() -> None:
    async with log_world() as world:
        log, heard = await world.open()
        buffer = bytearray(message("kept"))
        log.append(memoryview(buffer), 1, "token")
        buffer[:] = bytes(len(buffer))
        await heard.until(1)
        assert [text_of(entry) for entry in await read_all(log)] == ["kept"]


async def test_index_goes_on_where_it_was_when_a_topic_is_opened_again() -> None:
    async with log_world() as world:
        log, heard = await world.open()
        await world.written(log, heard, 3, batch=4)
        await log.aclose()
        log, heard = await world.open()
        assert log.next_index == log.next_confirmed_index == 12
        await world.written(log, heard, 1, first=3)
        assert [entry.head.index for entry in await read_all(log)] == [3, 7, 11, 12]


async def test_topic_opened_again_has_all_entries_and_a_new_ledger() -> None:
    async with log_world() as world:
        log, heard = await world.open()
        await world.written(log, heard, 3)
        await log.aclose()
        again, heard_again = await world.open()
        await world.written(again, heard_again, 2, first=3)
        assert [text_of(entry) for entry in await read_all(again)] == ["m0", "m1", "m2", "m3", "m4"]
        assert len(again.chain.spans) == 2


async def test_ledger_without_entries_is_dropped_and_deleted_when_a_topic_is_opened_again() -> None:
    async with log_world() as world:
        log, _ = await world.open()
        await log.aclose()
        again, _ = await world.open()
        assert await world.ledgers() == [span.ledger_id for span in again.chain.spans]


async def test_unknown_topic_is_not_made_unless_asked() -> None:
    async with log_world() as world:
        with pytest.raises(TopicNotFoundError):
            await world.open(create=False)
        assert await world.ledgers() == []


async def test_empty_node_is_a_new_topic() -> None:
    async with log_world() as world:
        await world.cluster.store.create(f"/managed-ledgers/{TOPIC}", b"", make_parents=True)
        log, heard = await world.open(create=False)
        await world.written(log, heard, 1)
        assert log.next_index == 1


async def test_ledgers_are_described_as_pulsar_describes_them() -> None:
    async with log_world() as world:
        log, _ = await world.open()
        metadata = await world.client.metadata(log.chain.spans[-1].ledger_id)
        assert metadata.custom_metadata == golden.custom_metadata("topic")
        assert (metadata.digest_type, metadata.password) == (DigestType.CRC32C, b"")


async def test_more_than_a_writer_takes_waits_and_is_written_in_order() -> None:
    async with log_world() as world:
        log, heard = await world.open()
        count = world.cluster.config.ledger.adds_in_flight_max + 500
        world.append(log, count)
        assert not log.has_room
        assert log.appends_waiting == 500
        await heard.until(count)
        assert heard.tokens == list(range(count))
        assert heard.rooms == 1
        assert log.has_room


async def test_append_beyond_what_may_wait_is_refused_and_leaves_no_gap() -> None:
    async with log_world() as world:
        log, heard = await world.open(appends_waiting_max=10)
        fitting = world.cluster.config.ledger.adds_in_flight_max + 10
        world.append(log, fitting)
        with pytest.raises(LogBusyError):
            world.append(log, 1)
        await heard.until(fitting)
        await world.written(log, heard, 1)
        assert (await read_all(log, heard.positions[-1]))[0].head.index == fitting


async def test_entry_that_no_ledger_takes_is_refused_and_leaves_no_gap() -> None:
    async with log_world() as world:
        log, heard = await world.open()
        with pytest.raises(EntryTooLargeError):
            log.append(bytes(FRAME_BYTES_MAX), 1, None)
        await world.written(log, heard, 1)
        assert log.next_index == 1


async def test_tail_watchers_are_called_once_per_run_after_the_acknowledgement() -> None:
    async with log_world() as world:
        log, heard = await world.open()
        seen: list[int] = []
        other: list[int] = []

        def watch() -> None:
            seen.append(len(heard.appended))

        log.watch_tail(watch)
        log.watch_tail(lambda: other.append(1))
        await world.written(log, heard, 30)
        assert seen[-1] == 30
        assert len(seen) < 30
        log.unwatch_tail(watch)
        calls = len(seen)
        await world.written(log, heard, 1)
        assert len(seen) == calls
        assert len(other) > calls


async def test_closing_acknowledges_what_is_in_flight_and_refuses_the_rest() -> None:
    async with log_world() as world:
        log, heard = await world.open()
        world.append(log, 20)
        await asyncio.gather(log.aclose(), log.aclose())
        assert heard.tokens == list(range(20))
        assert heard.fenced is None
        with pytest.raises(TopicFencedError):
            world.append(log, 1)


async def test_properties_are_kept_in_the_node() -> None:
    async with log_world() as world:
        log, heard = await world.open()
        await log.set_property("colour", "red")
        await log.set_property("shape", "round")
        await world.written(log, heard, 2)
        await log.set_property("colour", None)
        await log.aclose()
        again, _ = await world.open()
        assert again.properties == {"shape": "round", "index": "1"}


async def test_index_never_goes_back_whatever_a_client_counts() -> None:
    async with log_world() as world:
        log, heard = await world.open()
        for messages in (1, 0, -7, 2):
            log.append(message("m"), messages, None)
        await heard.until(4)
        assert [entry.head.index for entry in await read_all(log)] == [0, 1, 2, 4]
        assert log.next_index == log.next_confirmed_index == 5


async def test_topic_closed_while_it_is_rolled_leaves_no_open_writer() -> None:
    async with log_world() as world:
        log, heard = await world.open()
        await world.written(log, heard, 3)
        rolling = asyncio.ensure_future(log.roll())
        await asyncio.sleep(0)
        world.append(log, 3, first=3)
        await log.aclose()
        await rolling
        assert heard.tokens + heard.failed == list(range(6))
        assert len(world.client._writers) == 0
        again, _ = await world.open()
        assert [text_of(entry) for entry in await read_all(again)] == [f"m{number}" for number in heard.tokens]
