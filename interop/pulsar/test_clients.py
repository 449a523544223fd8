"""Apache's Java client: all kinds of subscriptions, and what the Python client lacks."""

from __future__ import annotations

import time

from interop.comparing import same
from interop.java_program import ApacheError
from interop.pulsar.conftest import Server

COUNT = 1000
SOON_S = 10


def _texts(count: int = COUNT) -> list[str]:
    return [f"m-{number}" for number in range(count)]


async def test_messages_of_the_java_client_come_back_in_order(server: Server) -> None:
    topic = server.new_topic()
    await server.ask("subscribe", consumer="c", topic=topic)
    await server.ask("produce", topic=topic, count=COUNT, batching=True)
    same("texts", await server.texts("c", COUNT), _texts())
    await server.ask("closeConsumer", consumer="c")


async def test_acknowledgements_with_receipts_are_kept(server: Server) -> None:
    topic = server.new_topic()
    await server.ask("subscribe", consumer="c", topic=topic, receipts=True, type="Shared")
    await server.ask("produce", topic=topic, count=10, batching=True)
    await server.texts("c", 6)
    await server.ask("closeConsumer", consumer="c")
    await server.ask("subscribe", consumer="c", topic=topic, receipts=True, type="Shared")
    same("texts", sorted(await server.texts("c", 4)), sorted(_texts(10)[6:]))
    same("nothing more", await server.texts("c", 1, quietMs=500), [])
    await server.ask("closeConsumer", consumer="c")


async def test_an_exclusive_subscription_refuses_a_second_consumer(server: Server) -> None:
    topic = server.new_topic()
    await server.ask("subscribe", consumer="one", topic=topic)
    try:
        await server.ask("subscribe", consumer="two", topic=topic)
    except ApacheError as error:
        same("error", "ConsumerBusy" in str(error), True)
    else:
        raise AssertionError("the second consumer was taken")
    await server.ask("closeConsumer", consumer="one")


async def test_shared_consumers_divide_what_there_is(server: Server) -> None:
    topic = server.new_topic()
    for name in ("one", "two"):
        await server.ask("subscribe", consumer=name, topic=topic, type="Shared", queue=10)
    await server.ask("produce", topic=topic, count=100)
    found = [await server.texts(name, 100, quietMs=1000) for name in ("one", "two")]
    same("all", sorted(found[0] + found[1]), sorted(_texts(100)))
    same("both have some", all(found), True)
    for name in ("one", "two"):
        await server.ask("closeConsumer", consumer=name)


async def test_a_failover_subscription_goes_on_with_the_next_consumer(server: Server) -> None:
    topic = server.new_topic()
    for name in ("one", "two"):
        await server.ask("subscribe", consumer=name, topic=topic, type="Failover", name=name)
    await server.ask("produce", topic=topic, count=20)
    found = {name: await server.texts(name, 10, quietMs=1500) for name in ("one", "two")}
    active = next(name for name, texts in found.items() if texts)
    other = "two" if active == "one" else "one"
    same("first half", found[active], _texts(20)[:10])
    same("the other waits", found[other], [])
    await server.ask("closeConsumer", consumer=active)
    same("second half", await server.texts(other, 10), _texts(20)[10:])
    await server.ask("closeConsumer", consumer=other)


async def test_key_shared_consumers_keep_the_order_of_each_key(server: Server) -> None:
    topic = server.new_topic()
    for name in ("one", "two"):
        await server.ask("subscribe", consumer=name, topic=topic, type="Key_Shared", name=name)
    await server.ask("produce", topic=topic, count=200, keys=20)
    owners: dict[str, set[str]] = {}
    for name in ("one", "two"):
        last: dict[str, int] = {}
        for message in await server.ask("receive", consumer=name, count=200, quietMs=1500):
            owners.setdefault(message["key"], set()).add(name)
            number = int(message["properties"]["number"])
            same("order of a key", last.get(message["key"], -1) < number, True)
            last[message["key"]] = number
    same("keys", len(owners), 20)
    same("one consumer for a key", {len(names) for names in owners.values()}, {1})
    for name in ("one", "two"):
        await server.ask("closeConsumer", consumer=name)


async def test_sticky_key_shared_consumers_get_the_ranges_they_ask_for(server: Server) -> None:
    topic = server.new_topic()
    await server.ask("subscribe", consumer="low", topic=topic, type="Key_Shared", sticky=[0, 32767])
    await server.ask("subscribe", consumer="high", topic=topic, type="Key_Shared", sticky=[32768, 65535])
    try:
        await server.ask("subscribe", consumer="third", topic=topic, type="Key_Shared", sticky=[5, 6])
    except ApacheError:
        pass
    else:
        raise AssertionError("a range that is taken was given away")
    await server.ask("produce", topic=topic, count=200, keys=100)
    low = await server.texts("low", 200, quietMs=1000)
    high = await server.texts("high", 200, quietMs=1000)
    same("all", sorted(low + high), sorted(_texts(200)))
    same("both have some", bool(low) and bool(high), True)
    for name in ("low", "high"):
        await server.ask("closeConsumer", consumer=name)


async def test_an_exclusive_producer_with_fencing_ends_the_one_before(server: Server) -> None:
    topic = server.new_topic()
    await server.ask("openProducer", producer="old", topic=topic, accessMode="Exclusive")
    await server.ask("send", producer="old", text="one")
    await server.ask("openProducer", producer="new", topic=topic, accessMode="ExclusiveWithFencing")
    await server.ask("send", producer="new", text="two")
    try:
        await server.ask("send", producer="old", text="three")
    except ApacheError as error:
        same("fenced", "Fenced" in str(error) or "Closed" in str(error), True)
    else:
        raise AssertionError("a producer that was fenced could send")
    same("stored", [message["text"] for message in await server.ask("read", topic=topic)], ["one", "two"])
    await server.ask("closeProducer", producer="new")


async def test_a_producer_waits_for_exclusive_access(server: Server) -> None:
    topic = server.new_topic()
    await server.ask("connect", url=server.standalone.url, client="other")
    await server.ask("openProducer", producer="old", topic=topic, accessMode="WaitForExclusive")
    try:
        await server.ask(
            "openProducer", producer="new", topic=topic, accessMode="WaitForExclusive", client="other", patience=1
        )
    except ApacheError as error:
        same("still waiting", "Timeout" in str(error), True)
    else:
        raise AssertionError("two producers have exclusive access")
    await server.ask("disconnect", client="other")
    await server.ask("closeProducer", producer="old")


async def test_a_pattern_consumer_is_told_of_new_topics(server: Server) -> None:
    base = server.new_topic()
    await server.ask("produce", topic=f"{base}-a", count=1)
    await server.ask("subscribe", consumer="c", pattern=f"{base}-.*", initial="Earliest")
    same("first topic", await server.texts("c", 1), ["m-0"])
    await server.ask("produce", topic=f"{base}-b", count=1)
    found = await server.ask("receive", consumer="c", count=1, quietMs=15000)
    same("second topic", [message["topic"] for message in found], [f"{base}-b"])
    await server.ask("closeConsumer", consumer="c")


async def test_a_message_is_tried_again_later_and_ends_among_the_dead_letters(server: Server) -> None:
    topic = server.new_topic()
    await server.ask(
        "subscribe", consumer="dead", topic=f"{topic}-s-DLQ", initial="Earliest", type="Shared", subscription="d"
    )
    await server.ask("subscribe", consumer="c", topic=topic, type="Shared", retry=True, redeliveriesMax=2)
    await server.ask("produce", topic=topic, count=1)
    for _ in range(3):
        same("again", await server.texts("c", 1, acknowledge="no"), ["m-0"])
        await server.ask("reconsumeLater", consumer="c")
    same("dead letter", await server.texts("dead", 1), ["m-0"])
    for name in ("c", "dead"):
        await server.ask("closeConsumer", consumer=name)


async def test_negative_acknowledgements_count_redeliveries(server: Server) -> None:
    topic = server.new_topic()
    await server.ask("subscribe", consumer="c", topic=topic, type="Shared")
    await server.ask("produce", topic=topic, count=1)
    counts = []
    for _ in range(3):
        counts += [m["redeliveries"] for m in await server.ask("receive", consumer="c", count=1, acknowledge="no")]
        await server.ask("negativeAcknowledge", consumer="c")
    same("counts", counts, [0, 1, 2])
    await server.ask("closeConsumer", consumer="c")


async def test_a_delayed_message_comes_after_one_that_was_sent_later(server: Server) -> None:
    topic = server.new_topic()
    await server.ask("subscribe", consumer="c", topic=topic, type="Shared")
    await server.ask("openProducer", producer="p", topic=topic)
    await server.ask("send", producer="p", text="later", delayMs=2500)
    await server.ask("send", producer="p", text="now")
    same("texts", await server.texts("c", 2), ["now", "later"])
    await server.ask("closeProducer", producer="p")
    await server.ask("closeConsumer", consumer="c")


async def test_a_consumer_seeks_to_the_beginning(server: Server) -> None:
    topic = server.new_topic()
    await server.ask("subscribe", consumer="c", topic=topic)
    await server.ask("produce", topic=topic, count=50, batching=True)
    same("once", await server.texts("c", 50, acknowledge="cumulative"), _texts(50))
    await server.ask("seek", consumer="c", to="earliest")
    same("again", await server.texts("c", 50), _texts(50))
    await server.ask("closeConsumer", consumer="c")


async def test_a_table_view_has_the_last_value_of_each_key(server: Server) -> None:
    topic = server.new_topic()
    await server.ask("produce", topic=topic, count=30, keys=3)
    same("table", await server.ask("tableView", topic=topic), {"k-0": "m-27", "k-1": "m-28", "k-2": "m-29"})


async def test_a_large_message_travels_in_chunks(server: Server) -> None:
    topic = server.new_topic()
    await server.ask("subscribe", consumer="c", topic=topic)
    await server.ask("openProducer", producer="p", topic=topic, chunking=True)
    large = "x" * (7 * 2**20)
    await server.ask("send", producer="p", text=large)
    same("length", [len(text) for text in await server.texts("c", 1)], [len(large)])
    await server.ask("closeProducer", producer="p")
    await server.ask("closeConsumer", consumer="c")


async def test_a_client_that_wants_transactions_is_told_that_there_are_none(server: Server) -> None:
    began = time.monotonic()
    try:
        await server.ask("connect", url=server.standalone.url, client="transactional", transactions=True)
    except ApacheError as error:
        same("soon, and not after the last of many tries", time.monotonic() - began < SOON_S, True)
        same("why", "ransaction" in str(error), True)
    else:
        raise AssertionError("a client has transactions that do not exist")
    topic = server.new_topic()
    await server.ask("subscribe", consumer="c", topic=topic)
    await server.ask("produce", topic=topic, count=1)
    same("others go on", await server.texts("c", 1), ["m-0"])
    await server.ask("closeConsumer", consumer="c")
