"""Two owners of one topic: never do both acknowledge."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from magnetar.errors import TopicFencedError
from magnetar.topic.log.managed_ledger import OwnedNode
from magnetar.topic.position import LATEST
from tests.unit.topic.log_world import TOPIC, log_world, read_all, text_of

pytestmark = pytest.mark.virtual_time


async def test_old_owner_is_fenced_and_told_once_another_has_opened_the_topic() -> None:
    async with log_world() as world:
        old, heard = await world.open()
        await world.written(old, heard, 5)
        new, heard_new = await world.open()
        world.append(old, 3, first=5)
        await heard.until_fenced()
        assert heard.tokens == [0, 1, 2, 3, 4]
        assert heard.failed == [5, 6, 7]
        assert heard.error is not None
        assert heard.error.outcome_unknown
        await world.written(new, heard_new, 2, first=100)
        assert [text_of(entry) for entry in await read_all(new)] == ["m0", "m1", "m2", "m3", "m4", "m100", "m101"]


async def test_only_the_owner_that_made_the_topic_finds_it_new() -> None:
    async with log_world() as world:
        first, _ = await world.open()
        second, _ = await world.open()
        assert (first.is_new, second.is_new) == (True, False)


async def test_old_owner_refuses_everything_once_it_is_fenced() -> None:
    async with log_world() as world:
        old, heard = await world.open()
        await world.open()
        world.append(old, 1)
        await heard.until_fenced()
        assert old.is_fenced
        with pytest.raises(TopicFencedError):
            world.append(old, 1)
        for change in (old.roll(), old.terminate(), old.set_property("a", "b"), old.delete(), old.trim(LATEST)):
            with pytest.raises(TopicFencedError):
                await change


async def test_everything_acknowledged_before_a_take_over_is_found_by_the_new_owner() -> None:
    async with log_world() as world:
        old, heard = await world.open()
        opening = asyncio.ensure_future(world.open())
        sent = 0
        while heard.fenced is None:
            with contextlib.suppress(TopicFencedError):
                world.append(old, 1, first=sent)
                sent += 1
            await asyncio.sleep(0)
        new, _ = await opening
        found = [int(text_of(entry)[1:]) for entry in await read_all(new, entries_max=1_000)]
        assert found == list(range(len(found)))
        assert len(found) >= len(heard.appended)
        assert heard.tokens + heard.failed == list(range(sent))
        assert new.next_index == len(found)


@pytest.mark.parametrize("change", ["property", "roll", "terminate", "trim", "delete"])
async def test_old_owner_that_does_not_write_finds_out_at_the_node(change: str) -> None:
    async with log_world() as world:
        old, heard = await world.open()
        await world.written(old, heard, 1)
        await old.roll()
        await world.written(old, heard, 1)
        new, heard_new = await world.open()
        work = {
            "property": lambda: old.set_property("a", "b"),
            "roll": old.roll,
            "terminate": old.terminate,
            "trim": lambda: old.trim(LATEST),
            "delete": old.delete,
        }[change]
        with pytest.raises(TopicFencedError):
            await work()
        await heard.until_fenced()
        assert len(await read_all(new)) == 2
        await world.written(new, heard_new, 1)
        assert not new.is_fenced


async def test_of_two_who_open_at_the_same_moment_one_owns_the_topic() -> None:
    async with log_world() as world:
        log, heard = await world.open()
        await world.written(log, heard, 3)
        await log.aclose()
        results = await asyncio.gather(*(world.open() for _ in range(4)), return_exceptions=True)
        owners = [result for result in results if not isinstance(result, BaseException)]
        losers = [result for result in results if isinstance(result, BaseException)]
        assert len(owners) == 1
        assert all(isinstance(error, TopicFencedError) and error.retryable for error in losers)
        winner, heard = owners[0]
        await world.written(winner, heard, 1, first=3)
        assert sorted(await world.ledgers()) == [span.ledger_id for span in winner.chain.spans]


async def test_owner_that_was_slow_between_its_ledger_and_the_node_never_acknowledges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with log_world() as world:
        held: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        write, reached = OwnedNode.write, asyncio.Event()

        async def slow_write(self: OwnedNode, *args: object, **choices: object) -> None:
            if not reached.is_set():
                reached.set()
                await held
            await write(self, *args, **choices)  # type: ignore[arg-type]

        monkeypatch.setattr(OwnedNode, "write", slow_write)
        slow = asyncio.ensure_future(world.open())
        await reached.wait()
        quick, heard = await world.open()
        held.set_result(None)
        with pytest.raises(TopicFencedError):
            await slow
        await world.written(quick, heard, 2)
        assert await world.ledgers() == [quick.chain.spans[0].ledger_id]


async def test_topic_that_was_deleted_under_its_owner_is_not_made_again_by_it() -> None:
    async with log_world() as world:
        old, heard = await world.open()
        await world.written(old, heard, 1)
        await world.cluster.store.delete(f"/managed-ledgers/{TOPIC}")
        with pytest.raises(TopicFencedError):
            await old.roll()
        await heard.until_fenced()
        assert await world.cluster.store.get(f"/managed-ledgers/{TOPIC}") is None


async def test_nothing_is_acknowledged_in_a_ledger_that_the_node_does_not_name_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with log_world() as world:
        old, heard = await world.open()
        await world.written(old, heard, 3)
        write, held, reached = OwnedNode.write, asyncio.Event(), asyncio.Event()

        async def slow_write(self: OwnedNode, *args: object, **choices: object) -> None:
            if self is old._node:
                reached.set()
                await held.wait()
            await write(self, *args, **choices)  # type: ignore[arg-type]

        monkeypatch.setattr(OwnedNode, "write", slow_write)
        rolling = asyncio.ensure_future(old.roll())
        while not reached.is_set():
            world.append(old, 1, first=3 + old.appends_waiting)
            await asyncio.sleep(0)
        world.append(old, 5, first=1_000)
        new, heard_new = await world.open()  # Its owner is slow: another one takes the topic over.
        await world.written(new, heard_new, 1)
        acknowledged = len(heard.appended)
        held.set()
        with pytest.raises(TopicFencedError):
            await rolling
        await heard.until_fenced()
        assert len(heard.appended) == acknowledged
        assert heard.failed[-5:] == [1_000, 1_001, 1_002, 1_003, 1_004]
        assert len(await read_all(new)) == acknowledged + 1
        assert sorted(await world.ledgers()) == [span.ledger_id for span in new.chain.spans]
