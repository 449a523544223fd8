"""Topics as ledgers: what the broker reports to clients that read from the bookies themselves."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from magnetar.admin.topics import segment_book
from magnetar.admin.topics.segments import position_after_bytes
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.broker.upkeep.upkeep import truncate
from magnetar.errors import EntryAbsentError, EntryDamagedError, EntryUnavailableError, MagnetarError
from magnetar.ids import LedgerId
from magnetar.metadata.bookkeeper.ledger_codec import decode
from magnetar.testing.waiting import until
from magnetar.topic.chain import LedgerChain, LedgerSpan
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import Position
from tests.unit.admin.admin_world import TOPIC, V2, AdminWorld, admin_world
from tests.unit.broker.pulsar.broker_world import batch

pytestmark = pytest.mark.virtual_time

DEFAULT = f"{V2}/persistent/public/default"


async def _publish_batches(world: AdminWorld, sizes: list[int], topic: str = "t") -> None:
    talker = await world.talker()
    await talker.producer(topic)
    for number, size in enumerate(sizes):
        await talker.published(1, number, b"", messages=size, raw=batch([b"m"] * size, number))
    talker.transport.close()


async def _segments(world: AdminWorld, query: str = "") -> Any:
    answer = await world.get(f"{TOPIC}/segments{query}")
    assert answer.status == 200, answer.body
    return answer.json


def _text(position: dict[str, int]) -> str:
    return f"{position['ledgerId']}:{position['entryId']}"


async def _roll(world: AdminWorld) -> None:
    topic = await world.world.topic("t")
    await topic.log.roll()


async def test_the_cluster_says_how_it_writes_ledgers() -> None:
    async with admin_world() as world:
        found = (await world.get(f"{V2}/magnetar/cluster")).json
        config = world.context.broker.service.config
        assert found["ledgersRoot"] == config.metadata.ledgers_root
        assert (found["ensembleSize"], found["writeQuorum"], found["ackQuorum"]) == (1, 1, 1)
        assert (found["digestType"], found["maxMessageBytes"]) == ("CRC32C", config.pulsar.message_bytes_max)


async def test_every_ledger_has_its_first_index_and_what_is_needed_to_read_it() -> None:
    async with admin_world() as world:
        await _publish_batches(world, [3, 2])
        await _roll(world)
        await _publish_batches(world, [5, 1, 1])
        found = await _segments(world)
        old, new = found["ledgers"]
        assert (old["closed"], new["closed"], old["closedMs"] > 0, new["closedMs"]) == (True, False, True, 0)
        assert (old["entries"], new["entries"]) == (2, 3)
        assert (old["firstIndex"], new["firstIndex"], found["nextIndex"]) == (0, 5, 12)
        assert old["firstPublishMs"] > 1_600_000_000_000
        assert found["lastConfirmed"] == {"ledgerId": new["ledgerId"], "entryId": 2}
        assert found["earliest"] == {"ledgerId": old["ledgerId"], "entryId": 0}
        assert found["terminated"] is False
        for ledger in (old, new):
            stored = decode(LedgerId(ledger["ledgerId"]), base64.b64decode(ledger["metadata"]), node_created_ms=0)
            assert stored.is_closed is ledger["closed"]
            assert (ledger["digestType"], base64.b64decode(ledger["password"])) == ("CRC32C", b"")
        assert old["sizeBytes"] == decode(LedgerId(0), base64.b64decode(old["metadata"]), node_created_ms=0).length


async def test_ledgers_can_be_left_out_and_an_empty_topic_has_its_end() -> None:
    async with admin_world() as world:
        await world.done("PUT", TOPIC)
        empty = await _segments(world)
        assert [ledger["entries"] for ledger in empty["ledgers"]] == [0]
        assert (empty["ledgers"][0]["firstIndex"], empty["nextIndex"]) == (0, 0)
        assert empty["lastConfirmed"]["entryId"] == -1
        await world.publish(2)
        await _roll(world)
        await world.publish(1, first=2)
        last = (await _segments(world))["ledgers"][-1]["ledgerId"]
        assert [ledger["ledgerId"] for ledger in (await _segments(world, f"?from={last}"))["ledgers"]] == [last]
        assert (await _segments(world, f"?from={last + 1}"))["ledgers"] == []


async def test_a_trimmed_topic_says_where_it_begins() -> None:
    async with admin_world() as world:
        await world.publish(4)
        topic = await world.world.topic("t")
        await truncate(topic)
        await world.publish(1, first=4)
        found = await _segments(world)
        assert [ledger["firstIndex"] for ledger in found["ledgers"]] == [4]
        assert found["earliest"] == {"ledgerId": found["ledgers"][0]["ledgerId"], "entryId": 0}


async def test_a_first_index_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with admin_world() as world:
        await world.publish(2)
        looked: list[int] = []
        original = segment_book._first_of

        async def counted(log: Any, ledger_id: int) -> Any:
            looked.append(ledger_id)
            return await original(log, ledger_id)

        monkeypatch.setattr(segment_book, "_first_of", counted)
        first = await _segments(world)
        assert (await _segments(world)) == first
        assert looked == [first["ledgers"][0]["ledgerId"]]


class Damage:
    """Positions of a topic that cannot be read, and why."""

    def __init__(self, topic: PersistentTopic, monkeypatch: pytest.MonkeyPatch) -> None:
        self.errors: dict[Position, MagnetarError] = {}
        self._fetch = topic.log._reads._fetch
        monkeypatch.setattr(topic.log._reads, "_fetch", self.fetch)
        topic.log._tail.clear()  # Or nothing would be read from bookies.

    async def fetch(self, first: Position, entries_max: int, bytes_max: int) -> list[LogEntry]:
        if first in self.errors:
            raise self.errors[first]
        return await self._fetch(first, entries_max, bytes_max)


@pytest.mark.parametrize(
    "error", [EntryAbsentError("nobody has it"), EntryDamagedError("everywhere"), EntryUnavailableError("who knows")]
)
async def test_a_ledger_whose_first_entry_cannot_be_read_is_listed_without_its_index(
    error: MagnetarError, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with admin_world() as world:
        await _publish_batches(world, [3, 2])
        await _roll(world)
        await _publish_batches(world, [5, 1])
        damage = Damage(await world.world.topic("t"), monkeypatch)
        first = Position((await world.world.topic("t")).log.chain.spans[0].ledger_id, 0)
        damage.errors[first] = error
        found = await _segments(world)
        assert [(each["entries"], each["firstIndex"]) for each in found["ledgers"]] == [(2, -1), (2, 5)]
        assert found["ledgers"][0]["firstPublishMs"] is None
        assert found["earliest"] == {"ledgerId": first.ledger_id, "entryId": 0}
        damage.errors.clear()
        assert [each["firstIndex"] for each in (await _segments(world))["ledgers"]] == [0, 5]


async def test_a_first_entry_that_is_waited_for_too_long_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_book, "_FIRSTS_S_MAX", 0.01)
    async with admin_world() as world:
        await world.publish(1)
        topic = await world.world.topic("t")
        damage = Damage(topic, monkeypatch)

        async def for_ever(*_: object) -> list[LogEntry]:
            return await asyncio.get_running_loop().create_future()

        monkeypatch.setattr(damage, "_fetch", for_ever)
        async with asyncio.timeout(5):
            assert [each["firstIndex"] for each in (await _segments(world))["ledgers"]] == [-1]


async def test_a_ledger_that_was_deleted_under_its_topic_is_listed_without_metadata() -> None:
    async with admin_world() as world:
        await world.publish(2)
        await _roll(world)
        await world.publish(1, first=2)
        topic = await world.world.topic("t")
        await topic.ledger_client.delete(topic.log.chain.spans[0].ledger_id)
        lost, there = (await _segments(world))["ledgers"]
        assert (lost["entries"], lost["firstIndex"], lost["metadata"], lost["offloaded"]) == (2, -1, "", False)
        assert (there["firstIndex"], bool(there["metadata"])) == (2, True)


async def test_a_ledger_that_is_trimmed_while_it_is_described_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async with admin_world() as world:
        await world.publish(2)
        await _roll(world)
        await world.publish(1, first=2)
        topic = await world.world.topic("t")
        trimmed = topic.log.chain.spans[0].ledger_id
        damage = Damage(topic, monkeypatch)
        original = damage._fetch

        async def trim(first: Position, *limits: int) -> list[LogEntry]:
            if first.ledger_id == trimmed and topic.log.chain.contains(first):
                await topic.log.trim(Position(trimmed, 1))
            return await original(first, *limits)

        monkeypatch.setattr(damage, "_fetch", trim)
        found = await _segments(world)
        assert [each["firstIndex"] for each in found["ledgers"]] == [2]
        assert trimmed not in [each["ledgerId"] for each in found["ledgers"]]


async def test_a_place_and_a_cut_are_found_beside_an_entry_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async with admin_world() as world:
        await _publish_batches(world, [3, 2, 4, 1])
        topic = await world.world.topic("t")
        first = topic.log.chain.first_position
        Damage(topic, monkeypatch).errors[first] = EntryAbsentError("nobody has it")
        place = (await world.get(f"{TOPIC}/place?at={first}")).json
        assert place == {"ledgerId": first.ledger_id, "entryId": 0, "batchIndex": -1, "index": None}
        cut = await world.get(f"{TOPIC}/cut?from={first}&messages=2")
        assert cut.json == {"ledgerId": first.ledger_id, "entryId": 2}  # As if entries had one message each.
        cut = await world.get(f"{TOPIC}/cut?from={first.ledger_id}:1&messages=2")
        assert cut.json == {"ledgerId": first.ledger_id, "entryId": 2}


async def test_a_topic_that_is_not_there_is_not_made_and_the_answer_says_what_to_do() -> None:
    async with admin_world() as world:
        for path in ("segments", "segments/wait?after=0:0", "cut?from=0:0&messages=1"):
            answer = await world.get(f"{DEFAULT}/nothing/{path}")
            assert answer.status == 404
            assert "magnetar topics create" in answer.reason
        assert (await world.get(DEFAULT)).json == []
        assert (await world.get(f"{V2}/persistent/public/nowhere/t/segments")).status == 404


async def test_partitions_are_asked_for_one_by_one() -> None:
    async with admin_world() as world:
        await world.done("PUT", f"{DEFAULT}/many/partitions", 2)
        assert (await world.get(f"{DEFAULT}/many/segments")).status == 405
        answer = await world.get(f"{DEFAULT}/many-partition-1/segments")
        assert (answer.status, answer.json["nextIndex"]) == (200, 0)
        assert (await world.get(f"{DEFAULT}/many-partition-2/segments")).status in (404, 405)


# --- waiting ----------------------------------------------------------------------------------------------------------


async def test_waiting_ends_as_soon_as_there_is_more() -> None:
    async with admin_world() as world:
        await world.publish(1)
        now = await _segments(world)
        after = _text(now["lastConfirmed"])
        waiting = asyncio.ensure_future(world.get(f"{TOPIC}/segments/wait?after={after}&timeoutMs=20000"))
        topic = await world.world.topic("t")
        await until(lambda: topic.log._writer.watchers, "somebody waits")
        await world.publish(1, first=1)
        async with asyncio.timeout(5):
            heard = (await waiting).json
        assert heard == {
            "lastConfirmed": {**now["lastConfirmed"], "entryId": 1}, "nextIndex": 2, "busy": False,
        }  # fmt: skip
        assert (await world.get(f"{TOPIC}/segments/wait?after={after}&timeoutMs=20000")).json == heard


async def test_waiting_ends_with_its_time_and_leaves_nothing_behind() -> None:
    async with admin_world() as world:
        await world.publish(1)
        after = _text((await _segments(world))["lastConfirmed"])
        heard = (await world.get(f"{TOPIC}/segments/wait?after={after}&timeoutMs=1")).json
        assert (heard["nextIndex"], heard["busy"]) == (1, False)
        topic = await world.world.topic("t")
        assert topic.log._writer.watchers == ()


async def test_only_so_many_wait_and_the_next_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_book, "WAITING_MAX", 1)
    async with admin_world() as world:
        await world.publish(1)
        after = _text((await _segments(world))["lastConfirmed"])
        first = asyncio.ensure_future(world.get(f"{TOPIC}/segments/wait?after={after}&timeoutMs=20000"))
        topic = await world.world.topic("t")
        await until(lambda: topic.log._writer.watchers, "somebody waits")
        assert (await world.get(f"{TOPIC}/segments/wait?after={after}&timeoutMs=20000")).json["busy"] is True
        await world.publish(1, first=1)
        assert (await first).json["busy"] is False


# --- cutting ----------------------------------------------------------------------------------------------------------


async def test_a_cut_by_messages_keeps_batches_whole_and_takes_at_least_one() -> None:
    async with admin_world() as world:
        await _publish_batches(world, [3, 2])
        await _roll(world)
        await _publish_batches(world, [5, 1, 1])
        found = await _segments(world)
        old, new = (ledger["ledgerId"] for ledger in found["ledgers"])

        async def cut(start: str, **limits: object) -> str:
            query = "&".join(f"{name}={value}" for name, value in limits.items())
            return _text((await world.get(f"{TOPIC}/cut?from={start}&{query}")).json)

        assert await cut(f"{old}:0", messages=3) == f"{old}:1"
        assert await cut(f"{old}:0", messages=4) == f"{old}:1"
        assert await cut(f"{old}:0", messages=1) == f"{old}:1"
        assert await cut(f"{old}:0", messages=5) == f"{new}:0"
        assert await cut(f"{old}:1", messages=8) == f"{new}:2"
        assert await cut(f"{old}:0", messages=1000) == f"{new}:3"
        assert await cut(f"{old}:0", messages=1000, to=f"{new}:1") == f"{new}:1"
        assert await cut("-1:-1", messages=3) == f"{old}:1"
        assert await cut(f"{new}:3", messages=3) == f"{new}:3"
        assert await cut(f"{old}:0", bytes=1) == f"{old}:1"
        assert await cut(f"{old}:0", bytes=10**9) == f"{new}:3"
        assert await cut(f"{old}:0", bytes=10**9, messages=3) == f"{old}:1"


async def test_a_cut_that_makes_no_sense_is_refused() -> None:
    async with admin_world() as world:
        await world.publish(1)
        for query in ("", "?from=x", "?from=1", "?from=0:0&messages=-1", "?from=0:0&bytes=x"):
            assert (await world.get(f"{TOPIC}/cut{query}")).status == 400


def test_bytes_are_counted_by_the_mean_size_of_each_ledgers_entries() -> None:
    chain = LedgerChain(
        [LedgerSpan(1, 10, 1_000, closed_ms=1), LedgerSpan(2, 0, 0, closed_ms=1), LedgerSpan(3, 4, 4_000)]
    )
    assert position_after_bytes(chain, Position(1, 0), 250) == Position(1, 2)
    assert position_after_bytes(chain, Position(1, 5), 500) == Position(3, 0)
    assert position_after_bytes(chain, Position(1, 5), 1_499) == Position(3, 0)
    assert position_after_bytes(chain, Position(1, 5), 1_500) == Position(3, 1)
    assert position_after_bytes(chain, Position(3, 2), 10_000) == Position(3, 4)
