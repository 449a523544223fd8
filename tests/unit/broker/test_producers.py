from __future__ import annotations

import asyncio
from typing import Any

import pytest

from magnetar.broker.publishing.producers import AccessMode, Producer, ProducerOptions, Producers
from magnetar.errors import MetadataUnavailableError, ProducerBusyError, ProducerFencedError


class Sink:
    """A connection that does what the test says."""

    def __init__(self, *, is_alive: bool = True) -> None:
        self.closed: list[Producer] = []
        self.is_alive = is_alive

    def published(self, *_: Any) -> None: ...
    def publish_failed(self, *_: Any) -> None: ...
    def hold(self, reason: str) -> None: ...
    def let_go(self, reason: str) -> None: ...

    def close_producer(self, producer: Producer) -> None:
        self.closed.append(producer)

    async def check_alive(self) -> bool:
        return self.is_alive


class SlowSink(Sink):
    """The sink of a dead connection, which is found to be dead only after some turns of the loop."""

    async def check_alive(self) -> bool:
        for _ in range(5):
            await asyncio.sleep(0)
        return False


class Epochs:
    def __init__(self) -> None:
        self.stored: list[int] = []
        self.fails = False

    async def store(self, epoch: int) -> None:
        await asyncio.sleep(0)
        if self.fails:
            raise MetadataUnavailableError("gone")
        self.stored.append(epoch)


def producer(name: str, mode: AccessMode = AccessMode.SHARED, *, sink: Sink | None = None, **options: Any) -> Producer:
    made = ProducerOptions(producer_id=1, name=name, access_mode=mode, **options)
    return Producer(made, sink or Sink(), address="10.0.0.1:5")


def nothing() -> None: ...


async def admit_all(producers: Producers, *all_: Producer) -> None:
    for each in all_:
        await producers.admit(each, nothing)


async def test_each_name_is_admitted_once() -> None:
    producers = Producers("t", Epochs().store)
    await admit_all(producers, producer("a"), producer("b"))
    with pytest.raises(ProducerBusyError):
        await producers.admit(producer("a"), nothing)
    assert len(producers) == 2


async def test_a_name_held_by_a_dead_connection_is_given_away() -> None:
    producers = Producers("t", Epochs().store)
    await producers.admit(producer("a", sink=Sink(is_alive=False)), nothing)
    successor = producer("a")
    await producers.admit(successor, nothing)
    assert list(producers) == [successor]


async def test_an_older_epoch_of_the_same_producer_does_not_replace_a_newer_one() -> None:
    producers, sink = Producers("t", Epochs().store), Sink()
    await producers.admit(producer("a", sink=sink, epoch=2), nothing)
    with pytest.raises(ProducerBusyError):
        await producers.admit(producer("a", sink=sink, epoch=1), nothing)
    newer = producer("a", sink=sink, epoch=3)
    await producers.admit(newer, nothing)
    assert list(producers) == [newer]


async def test_each_exclusive_producer_gets_the_next_epoch_stored_before_it_is_admitted() -> None:
    epochs = Epochs()
    producers = Producers("t", epochs.store)
    first = producer("a", AccessMode.EXCLUSIVE)
    assert await producers.admit(first, nothing) == 0
    producers.remove(first)
    assert await producers.admit(producer("b", AccessMode.EXCLUSIVE), nothing) == 1
    assert epochs.stored == [0, 1]


async def test_an_epoch_that_cannot_be_stored_leaves_the_topic_free() -> None:
    epochs = Epochs()
    epochs.fails = True
    producers = Producers("t", epochs.store)
    with pytest.raises(MetadataUnavailableError):
        await producers.admit(producer("a", AccessMode.EXCLUSIVE), nothing)
    epochs.fails = False
    assert await producers.admit(producer("b", AccessMode.EXCLUSIVE), nothing) == 0


async def test_two_that_want_exclusive_access_at_the_same_moment_do_not_both_get_it() -> None:
    producers = Producers("t", Epochs().store)
    outcomes = await asyncio.gather(
        *(producers.admit(producer(name, AccessMode.EXCLUSIVE), nothing) for name in "ab"), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [int, ProducerFencedError]


async def test_one_that_reconnects_with_its_own_epoch_is_let_in_and_with_an_older_one_is_fenced() -> None:
    producers = Producers("t", Epochs().store, epoch=5)
    assert await producers.admit(producer("a", AccessMode.EXCLUSIVE, topic_epoch=5), nothing) == 5
    producers.remove(next(iter(producers)))
    with pytest.raises(ProducerFencedError):
        await producers.admit(producer("a", AccessMode.EXCLUSIVE, topic_epoch=4), nothing)


async def test_those_that_wait_get_their_turn_in_order_and_one_that_gives_up_is_passed_over() -> None:
    producers = Producers("t", Epochs().store)
    shared = producer("shared")
    await producers.admit(shared, nothing)
    queued: list[str] = []
    waiting = {}
    for name in "abc":
        each = producer(name, AccessMode.WAIT_FOR_EXCLUSIVE)
        waiting[name] = asyncio.ensure_future(producers.admit(each, lambda name=name: queued.append(name)))
        await asyncio.sleep(0)
    assert queued == ["a", "b", "c"]
    waiting["a"].cancel()
    await asyncio.wait([waiting["a"]])
    producers.remove(shared)
    assert await waiting["b"] == 0
    assert not waiting["c"].done()
    producers.remove(next(iter(producers)))
    assert await waiting["c"] == 1


async def test_one_that_gives_up_at_the_moment_of_its_turn_passes_it_on() -> None:
    producers = Producers("t", Epochs().store)
    shared = producer("shared")
    await producers.admit(shared, nothing)
    waiting = [
        asyncio.ensure_future(producers.admit(producer(name, AccessMode.WAIT_FOR_EXCLUSIVE), nothing)) for name in "ab"
    ]
    await asyncio.sleep(0)
    producers.remove(shared)
    waiting[0].cancel()
    assert await waiting[1] == 0


async def test_a_fencing_producer_closes_all_and_fails_those_that_wait() -> None:
    producers, sink = Producers("t", Epochs().store), Sink()
    first = producer("a", AccessMode.EXCLUSIVE, sink=sink)
    await producers.admit(first, nothing)
    waiting = asyncio.ensure_future(producers.admit(producer("b", AccessMode.WAIT_FOR_EXCLUSIVE), nothing))
    await asyncio.sleep(0)
    assert await producers.admit(producer("c", AccessMode.EXCLUSIVE_WITH_FENCING), nothing) == 1
    assert sink.closed == [first]
    assert first.is_closed
    with pytest.raises(ProducerFencedError):
        await waiting


@pytest.mark.parametrize("name", ["b", "a"], ids=["another name", "the same name"])
@pytest.mark.parametrize("mode", [AccessMode.EXCLUSIVE, AccessMode.EXCLUSIVE_WITH_FENCING])
async def test_a_fencing_producer_fences_one_whose_epoch_is_being_stored(mode: AccessMode, name: str) -> None:
    epochs = Epochs()
    producers = Producers("t", epochs.store)
    fencing = producer(name, AccessMode.EXCLUSIVE_WITH_FENCING)
    outcomes = await asyncio.gather(
        producers.admit(producer("a", mode), nothing), producers.admit(fencing, nothing), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [ProducerFencedError, int]
    assert list(producers) == [fencing]
    assert epochs.stored == sorted(set(epochs.stored))
    with pytest.raises(ProducerFencedError):
        await producers.admit(producer("c", AccessMode.EXCLUSIVE), nothing)


async def test_of_many_that_fence_at_the_same_moment_the_last_one_stays_and_those_that_wait_get_their_turn() -> None:
    epochs = Epochs()
    producers = Producers("t", epochs.store)
    all_ = [producer(f"p{number}", AccessMode.EXCLUSIVE_WITH_FENCING) for number in range(5)]
    admitting = [asyncio.ensure_future(producers.admit(each, nothing)) for each in all_]
    await asyncio.sleep(0)
    waiting = asyncio.ensure_future(producers.admit(producer("w", AccessMode.WAIT_FOR_EXCLUSIVE), nothing))
    outcomes = await asyncio.gather(*admitting, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ProducerFencedError] * 4 + [int]
    assert list(producers) == [all_[-1]]
    last = all_[-1].topic_epoch
    assert last is not None
    producers.remove(all_[-1])
    assert await waiting > last
    assert epochs.stored == sorted(set(epochs.stored))


async def test_a_fencing_producer_fences_one_whose_turn_has_just_come() -> None:
    producers = Producers("t", Epochs().store)
    shared = producer("shared")
    await producers.admit(shared, nothing)
    waiting = asyncio.ensure_future(producers.admit(producer("w", AccessMode.WAIT_FOR_EXCLUSIVE), nothing))
    await asyncio.sleep(0)
    producers.remove(shared)  # Its turn, of which it does not know yet.
    fencing = producer("f", AccessMode.EXCLUSIVE_WITH_FENCING)
    await producers.admit(fencing, nothing)
    with pytest.raises(ProducerFencedError):
        await waiting
    assert list(producers) == [fencing]


async def test_one_that_is_fenced_and_gives_up_does_not_give_away_what_the_other_has() -> None:
    producers = Producers("t", Epochs().store)
    admitting = asyncio.ensure_future(producers.admit(producer("a", AccessMode.EXCLUSIVE), nothing))
    await asyncio.sleep(0)
    fencing = producer("a", AccessMode.EXCLUSIVE_WITH_FENCING)
    taking = asyncio.ensure_future(producers.admit(fencing, nothing))
    await asyncio.sleep(0)
    admitting.cancel()
    await taking
    assert list(producers) == [fencing]
    with pytest.raises(ProducerBusyError):
        await producers.admit(producer("shared"), nothing)


async def test_one_that_takes_the_name_of_the_dead_does_not_slip_in_beside_an_exclusive_producer() -> None:
    producers = Producers("t", Epochs().store)
    await producers.admit(producer("a", sink=SlowSink()), nothing)
    slow = asyncio.ensure_future(producers.admit(producer("a"), nothing))
    await asyncio.sleep(0)
    fencing = producer("f", AccessMode.EXCLUSIVE_WITH_FENCING)
    await producers.admit(fencing, nothing)
    with pytest.raises(ProducerBusyError):
        await slow
    assert list(producers) == [fencing]


async def test_one_that_comes_back_with_an_older_epoch_throws_nobody_out() -> None:
    producers, sink = Producers("t", Epochs().store, epoch=5), Sink()
    rightful = producer("a", AccessMode.EXCLUSIVE, sink=sink)
    await producers.admit(rightful, nothing)
    with pytest.raises(ProducerFencedError):
        await producers.admit(producer("b", AccessMode.EXCLUSIVE_WITH_FENCING, topic_epoch=5), nothing)
    assert (list(producers), sink.closed) == ([rightful], [])


async def test_one_that_waited_with_an_older_epoch_is_fenced_and_passes_its_turn_on() -> None:
    producers = Producers("t", Epochs().store)
    first = producer("a", AccessMode.EXCLUSIVE)
    await producers.admit(first, nothing)
    old = asyncio.ensure_future(producers.admit(producer("b", AccessMode.WAIT_FOR_EXCLUSIVE, topic_epoch=0), nothing))
    new = asyncio.ensure_future(producers.admit(producer("c", AccessMode.WAIT_FOR_EXCLUSIVE), nothing))
    await asyncio.sleep(0)
    producers.epoch = 1  # Another exclusive producer had the topic in between.
    producers.remove(first)
    with pytest.raises(ProducerFencedError):
        await old
    assert await new == 2


async def test_limits_count_users_and_their_addresses_but_not_replicators() -> None:
    producers = Producers("t", Epochs().store)
    producers.max_count, producers.max_same_address = 2, 1
    await producers.admit(producer("a"), nothing)
    with pytest.raises(ProducerBusyError, match="1 producer from"):
        await producers.admit(producer("b"), nothing)
    producers.max_same_address = 0
    await admit_all(producers, producer("b"), producer("pulsar.repl.x"))
    with pytest.raises(ProducerBusyError, match="which is its limit"):
        await producers.admit(producer("c"), nothing)
