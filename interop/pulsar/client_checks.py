"""Apache's Java client: all kinds of subscriptions, and what the Python client lacks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from interop.java_program import ApacheError
from interop.runner import same

if TYPE_CHECKING:
    from interop.pulsar.part import Pulsar

COUNT = 1000
SOON_S = 10


def _texts(count: int = COUNT) -> list[str]:
    return [f"m-{number}" for number in range(count)]


async def messages_of_the_java_client_come_back_in_order(p: Pulsar) -> None:
    topic = p.new_topic()
    await p.ask("subscribe", consumer="c", topic=topic)
    await p.ask("produce", topic=topic, count=COUNT, batching=True)
    same("texts", await p.texts("c", COUNT), _texts())
    await p.ask("closeConsumer", consumer="c")


async def acknowledgements_with_receipts_are_kept(p: Pulsar) -> None:
    topic = p.new_topic()
    await p.ask("subscribe", consumer="c", topic=topic, receipts=True, type="Shared")
    await p.ask("produce", topic=topic, count=10, batching=True)
    await p.texts("c", 6)
    await p.ask("closeConsumer", consumer="c")
    await p.ask("subscribe", consumer="c", topic=topic, receipts=True, type="Shared")
    same("texts", sorted(await p.texts("c", 4)), sorted(_texts(10)[6:]))
    same("nothing more", await p.texts("c", 1, quietMs=500), [])
    await p.ask("closeConsumer", consumer="c")


async def an_exclusive_subscription_refuses_a_second_consumer(p: Pulsar) -> None:
    topic = p.new_topic()
    await p.ask("subscribe", consumer="one", topic=topic)
    try:
        await p.ask("subscribe", consumer="two", topic=topic)
    except ApacheError as error:
        same("error", "ConsumerBusy" in str(error), True)
    else:
        raise AssertionError("the second consumer was taken")
    await p.ask("closeConsumer", consumer="one")


async def shared_consumers_divide_what_there_is(p: Pulsar) -> None:
    topic = p.new_topic()
    for name in ("one", "two"):
        await p.ask("subscribe", consumer=name, topic=topic, type="Shared", queue=10)
    await p.ask("produce", topic=topic, count=100)
    found = [await p.texts(name, 100, quietMs=1000) for name in ("one", "two")]
    same("all", sorted(found[0] + found[1]), sorted(_texts(100)))
    same("both have some", all(found), True)
    for name in ("one", "two"):
        await p.ask("closeConsumer", consumer=name)


async def a_failover_subscription_goes_on_with_the_next_consumer(p: Pulsar) -> None:
    topic = p.new_topic()
    for name in ("one", "two"):
        await p.ask("subscribe", consumer=name, topic=topic, type="Failover", name=name)
    await p.ask("produce", topic=topic, count=20)
    found = {name: await p.texts(name, 10, quietMs=1500) for name in ("one", "two")}
    active = next(name for name, texts in found.items() if texts)
    other = "two" if active == "one" else "one"
    same("first half", found[active], _texts(20)[:10])
    same("the other waits", found[other], [])
    await p.ask("closeConsumer", consumer=active)
    same("second half", await p.texts(other, 10), _texts(20)[10:])
    await p.ask("closeConsumer", consumer=other)


async def key_shared_consumers_keep_the_order_of_each_key(p: Pulsar) -> None:
    topic = p.new_topic()
    for name in ("one", "two"):
        await p.ask("subscribe", consumer=name, topic=topic, type="Key_Shared", name=name)
    await p.ask("produce", topic=topic, count=200, keys=20)
    owners: dict[str, set[str]] = {}
    for name in ("one", "two"):
        last: dict[str, int] = {}
        for message in await p.ask("receive", consumer=name, count=200, quietMs=1500):
            owners.setdefault(message["key"], set()).add(name)
            number = int(message["properties"]["number"])
            same("order of a key", last.get(message["key"], -1) < number, True)
            last[message["key"]] = number
    same("keys", len(owners), 20)
    same("one consumer for a key", {len(names) for names in owners.values()}, {1})
    for name in ("one", "two"):
        await p.ask("closeConsumer", consumer=name)


async def sticky_key_shared_consumers_get_the_ranges_they_ask_for(p: Pulsar) -> None:
    topic = p.new_topic()
    await p.ask("subscribe", consumer="low", topic=topic, type="Key_Shared", sticky=[0, 32767])
    await p.ask("subscribe", consumer="high", topic=topic, type="Key_Shared", sticky=[32768, 65535])
    try:
        await p.ask("subscribe", consumer="third", topic=topic, type="Key_Shared", sticky=[5, 6])
    except ApacheError:
        pass
    else:
        raise AssertionError("a range that is taken was given away")
    await p.ask("produce", topic=topic, count=200, keys=100)
    low = await p.texts("low", 200, quietMs=1000)
    high = await p.texts("high", 200, quietMs=1000)
    same("all", sorted(low + high), sorted(_texts(200)))
    same("both have some", bool(low) and bool(high), True)
    for name in ("low", "high"):
        await p.ask("closeConsumer", consumer=name)


async def an_exclusive_producer_with_fencing_ends_the_one_before(p: Pulsar) -> None:
    topic = p.new_topic()
    await p.ask("openProducer", producer="old", topic=topic, accessMode="Exclusive")
    await p.ask("send", producer="old", text="one")
    await p.ask("openProducer", producer="new", topic=topic, accessMode="ExclusiveWithFencing")
    await p.ask("send", producer="new", text="two")
    try:
        await p.ask("send", producer="old", text="three")
    except ApacheError as error:
        same("fenced", "Fenced" in str(error) or "Closed" in str(error), True)
    else:
        raise AssertionError("a producer that was fenced could send")
    same("stored", [message["text"] for message in await p.ask("read", topic=topic)], ["one", "two"])
    await p.ask("closeProducer", producer="new")


async def a_producer_waits_for_exclusive_access(p: Pulsar) -> None:
    topic = p.new_topic()
    await p.ask("connect", url=p.server.url, client="other")
    await p.ask("openProducer", producer="old", topic=topic, accessMode="WaitForExclusive")
    try:
        await p.ask(
            "openProducer", producer="new", topic=topic, accessMode="WaitForExclusive", client="other", patience=1
        )
    except ApacheError as error:
        same("still waiting", "Timeout" in str(error), True)
    else:
        raise AssertionError("two producers have exclusive access")
    await p.ask("disconnect", client="other")
    await p.ask("closeProducer", producer="old")


async def a_pattern_consumer_is_told_of_new_topics(p: Pulsar) -> None:
    base = p.new_topic()
    await p.ask("produce", topic=f"{base}-a", count=1)
    await p.ask("subscribe", consumer="c", pattern=f"{base}-.*", initial="Earliest")
    same("first topic", await p.texts("c", 1), ["m-0"])
    await p.ask("produce", topic=f"{base}-b", count=1)
    found = await p.ask("receive", consumer="c", count=1, quietMs=15000)
    same("second topic", [message["topic"] for message in found], [f"{base}-b"])
    await p.ask("closeConsumer", consumer="c")


async def a_message_is_tried_again_later_and_ends_among_the_dead_letters(p: Pulsar) -> None:
    topic = p.new_topic()
    await p.ask(
        "subscribe", consumer="dead", topic=f"{topic}-s-DLQ", initial="Earliest", type="Shared", subscription="d"
    )
    await p.ask("subscribe", consumer="c", topic=topic, type="Shared", retry=True, redeliveriesMax=2)
    await p.ask("produce", topic=topic, count=1)
    for _ in range(3):
        same("again", await p.texts("c", 1, acknowledge="no"), ["m-0"])
        await p.ask("reconsumeLater", consumer="c")
    same("dead letter", await p.texts("dead", 1), ["m-0"])
    for name in ("c", "dead"):
        await p.ask("closeConsumer", consumer=name)


async def negative_acknowledgements_count_redeliveries(p: Pulsar) -> None:
    topic = p.new_topic()
    await p.ask("subscribe", consumer="c", topic=topic, type="Shared")
    await p.ask("produce", topic=topic, count=1)
    counts = []
    for _ in range(3):
        counts += [m["redeliveries"] for m in await p.ask("receive", consumer="c", count=1, acknowledge="no")]
        await p.ask("negativeAcknowledge", consumer="c")
    same("counts", counts, [0, 1, 2])
    await p.ask("closeConsumer", consumer="c")


async def a_delayed_message_comes_after_one_that_was_sent_later(p: Pulsar) -> None:
    topic = p.new_topic()
    await p.ask("subscribe", consumer="c", topic=topic, type="Shared")
    await p.ask("openProducer", producer="p", topic=topic)
    await p.ask("send", producer="p", text="later", delayMs=2500)
    await p.ask("send", producer="p", text="now")
    same("texts", await p.texts("c", 2), ["now", "later"])
    await p.ask("closeProducer", producer="p")
    await p.ask("closeConsumer", consumer="c")


async def a_consumer_seeks_to_the_beginning(p: Pulsar) -> None:
    topic = p.new_topic()
    await p.ask("subscribe", consumer="c", topic=topic)
    await p.ask("produce", topic=topic, count=50, batching=True)
    same("once", await p.texts("c", 50, acknowledge="cumulative"), _texts(50))
    await p.ask("seek", consumer="c", to="earliest")
    same("again", await p.texts("c", 50), _texts(50))
    await p.ask("closeConsumer", consumer="c")


async def a_table_view_has_the_last_value_of_each_key(p: Pulsar) -> None:
    topic = p.new_topic()
    await p.ask("produce", topic=topic, count=30, keys=3)
    same("table", await p.ask("tableView", topic=topic), {"k-0": "m-27", "k-1": "m-28", "k-2": "m-29"})


async def a_large_message_travels_in_chunks(p: Pulsar) -> None:
    topic = p.new_topic()
    await p.ask("subscribe", consumer="c", topic=topic)
    await p.ask("openProducer", producer="p", topic=topic, chunking=True)
    large = "x" * (7 * 2**20)
    await p.ask("send", producer="p", text=large)
    same("length", [len(text) for text in await p.texts("c", 1)], [len(large)])
    await p.ask("closeProducer", producer="p")
    await p.ask("closeConsumer", consumer="c")


async def a_client_that_wants_transactions_is_told_that_there_are_none(p: Pulsar) -> None:
    began = time.monotonic()
    try:
        await p.ask("connect", url=p.server.url, client="transactional", transactions=True)
    except ApacheError as error:
        same("soon, and not after the last of many tries", time.monotonic() - began < SOON_S, True)
        same("why", "ransaction" in str(error), True)
    else:
        raise AssertionError("a client has transactions that do not exist")
    topic = p.new_topic()
    await p.ask("subscribe", consumer="c", topic=topic)
    await p.ask("produce", topic=topic, count=1)
    same("others go on", await p.texts("c", 1), ["m-0"])
    await p.ask("closeConsumer", consumer="c")


CHECKS = [
    messages_of_the_java_client_come_back_in_order,
    acknowledgements_with_receipts_are_kept,
    an_exclusive_subscription_refuses_a_second_consumer,
    shared_consumers_divide_what_there_is,
    a_failover_subscription_goes_on_with_the_next_consumer,
    key_shared_consumers_keep_the_order_of_each_key,
    sticky_key_shared_consumers_get_the_ranges_they_ask_for,
    an_exclusive_producer_with_fencing_ends_the_one_before,
    a_producer_waits_for_exclusive_access,
    a_pattern_consumer_is_told_of_new_topics,
    a_message_is_tried_again_later_and_ends_among_the_dead_letters,
    negative_acknowledgements_count_redeliveries,
    a_delayed_message_comes_after_one_that_was_sent_later,
    a_consumer_seeks_to_the_beginning,
    a_table_view_has_the_last_value_of_each_key,
    a_large_message_travels_in_chunks,
    a_client_that_wants_transactions_is_told_that_there_are_none,
]
