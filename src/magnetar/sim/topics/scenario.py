"""The scenario of topics: what a world of brokers and their clients is made of, and how it settles.

Settled:   one owner for each topic, and every broker knows it → in some seeds a while in which consumers continue (V6)
           → producers get their last receipts, consumers leave → topics are loaded anew → a client that had no part in
           it reads every topic from its beginning (the audit), drains every subscription (T5, C7) and in some seeds
           reads the compacted views (C8) → clients, brokers and bookies end and leave nothing behind (V5).
Read next: ../run.py, watch.py, cluster.py, workload.py
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from magnetar.broker.broker import Broker
from magnetar.client import EARLIEST, ClientOptions, Consumer, MessageId, PulsarClient
from magnetar.errors import MagnetarError
from magnetar.sim.device import Crash
from magnetar.sim.ledgers.cluster import SETTLE_LIMIT_S
from magnetar.sim.run import Scenario
from magnetar.sim.topics.cluster import BrokerNode, TopicCluster
from magnetar.sim.topics.compacting import check_compacted_views
from magnetar.sim.topics.invariants import ALL
from magnetar.sim.topics.nemesis import TopicNemesis
from magnetar.sim.topics.observe import WatchedSubscription, observed
from magnetar.sim.topics.options import FAULTS, draw
from magnetar.sim.topics.watch import Audited, Progress, TopicWatch, plain
from magnetar.sim.topics.workload import TopicWorkload, acknowledge, open_consumer, received

AUDITOR: Final = "auditor"
PATIENT: Final = ClientOptions(
    connect_timeout_s=1.0, request_timeout_s=10.0, open_timeout_s=30.0, reconnect_timeout_s=30.0, keep_alive_s=2.0
)
_TRIES_MAX: Final = 10
_QUIET_S: Final = 0.4  # After this long without a message, nothing more will come …
_QUIET_MAX: Final = 20  # … unless something is missing; then after this many such waits.
_READ_LIMIT_S: Final = 15.0
_FAREWELL_S: Final = 1.0  # For bookies to hear that brokers have gone.
_QUEUE_MAX: Final = 100
_CALM_S: Final = 4.0  # Longer than a delivery may take, and than consumers need to acknowledge what they hold.
_LOOK_S: Final = 0.1


async def settle(cluster: TopicCluster, workload: TopicWorkload, watch: TopicWatch) -> None:
    if not await brokers_serve(cluster):
        return
    if cluster.topic_options.holds:
        await calm(cluster, workload, watch)
    await end_apps(cluster, workload)
    await unload_all(cluster)
    await audit(cluster, watch)


async def brokers_serve(cluster: TopicCluster) -> bool:
    """Every broker runs, and all agree on who owns what; False if there are too few bookies for topics to continue."""
    count = len(cluster.brokers)
    await cluster.wait_healed(lambda: len(cluster.running_owners()) == count, "V2", "brokers do not come back")
    cluster.agree()
    if len(cluster.running_bookies()) >= cluster.options.ensemble:
        return True
    cluster.watch.counters["seeds left open for lack of bookies"] += 1
    return False


async def calm(cluster: TopicCluster, workload: TopicWorkload, watch: TopicWatch) -> None:
    """Producers end; consumers stay, and get what they can take (V6)."""
    for producer in workload.producers:
        producer.is_over = True
    for consumer in workload.consumers:
        consumer.is_calm = True
    loop = cluster.world.loop
    end = loop.now + _CALM_S
    while loop.now < end:
        for subscription in _subscriptions(cluster):
            watch.tell("on_look", subscription)
        await asyncio.sleep(_LOOK_S)
    watch.counters["calm seeds"] += 1


def _subscriptions(cluster: TopicCluster) -> list[WatchedSubscription]:
    """Of all topics, at the brokers that shall serve them."""
    found: list[WatchedSubscription] = []
    for name in cluster.topic_options.topic_names:
        if (topic := cluster.served(name)) is not None:
            found += [each for each in topic.subscriptions.values() if isinstance(each, WatchedSubscription)]
    return found


async def end_apps(cluster: TopicCluster, workload: TopicWorkload) -> None:
    """Producers have everything stored, and consumers have left."""
    for producer in workload.producers:
        producer.is_over = True
    for consumer in workload.consumers:
        consumer.is_over = True
    for name, node in cluster.apps.items():
        if await cluster.wait_healed(partial(getattr, node, "is_done"), "V2", f"{name} does not end"):
            await cluster.wait_exit(name)


async def unload_all(cluster: TopicCluster) -> None:
    """A broker whose topic another one took by mistake does not know it before it writes, and serves old news."""
    for node in cluster.brokers.values():
        if node.broker is not None:
            cluster.spawn(node, _unload(node.broker), f"{node.name} unloads all")
        await _wait_work(node)


async def _unload(broker: Broker) -> None:
    for topic in broker.service.topics.loaded():
        await broker.service.topics.unload(topic.name)


# --- the audit --------------------------------------------------------------------------------------------------------


async def audit(cluster: TopicCluster, watch: TopicWatch) -> None:
    async def look(client: PulsarClient) -> None:
        for topic in cluster.topic_options.topic_names:
            found = await read_patiently(client, topic, watch)
            watch.told.audits[topic] = with_trimmed(watch, topic, found) if cluster.topic_options.trims else found
        watch.tell("at_audit")
        for progress in watch.told.progress.values():
            await _drain(client, progress, watch)
            _check_backlog(cluster, progress, watch)
        if cluster.topic_options.compacts:
            await check_compacted_views(cluster, watch, client)

    node = cluster.add_app(AUDITOR, look, options=PATIENT)
    await cluster.wait_healed(lambda: node.is_done, "V2", "the audit does not end")
    await cluster.wait_exit(AUDITOR)


def with_trimmed(watch: TopicWatch, topic: str, found: list[Audited]) -> list[Audited]:
    """What was found, and what was in ledgers that were trimmed, as far as anybody was told of it. All of it must have
    been delivered and acknowledged, so nothing is missing. Some may have been trimmed while the topic was read."""
    first, known = watch.chains[topic].spans[0].ledger_id, {each.id: each for each in found}
    for sends in watch.told.sends.values():
        for number, message_id in sends.stored.items() if sends.topic == topic else ():
            if 0 <= message_id.ledger_id < first:
                at = plain(message_id)
                known.setdefault(at, Audited(at, sends.producer, number, sends.payload(number)))
    for progress in watch.told.subscriptions_of(topic):
        for message_id, payload in progress.seen.items():
            if message_id.ledger_id < first:
                _, producer, sequence_id = payload.decode().split("/")
                known.setdefault(message_id, Audited(message_id, producer, int(sequence_id), payload))
    return [known[message_id] for message_id in sorted(known)]


async def read_patiently(client: PulsarClient, topic: str, watch: TopicWatch) -> list[Audited]:
    for tries_left in reversed(range(_TRIES_MAX)):
        try:
            return await _read_all(client, topic)
        except (MagnetarError, TimeoutError) as error:
            watch.note(f"the audit of {topic} failed: {error}")
            if not tries_left:
                watch.violated("V2", f"{topic} cannot be read in a healed world: {error!r}")
            await asyncio.sleep(0.2)
    return []


async def _read_all(client: PulsarClient, topic: str) -> list[Audited]:
    reader = await client.reader(topic, EARLIEST)
    found: list[Audited] = []
    try:
        while await reader.has_next():
            message = await reader.read(_READ_LIMIT_S)
            found.append(Audited(plain(message.id), message.producer_name, message.sequence_id, message.payload))
    finally:
        await reader.aclose()
    return found


async def _drain(client: PulsarClient, progress: Progress, watch: TopicWatch) -> None:
    """What comes now was not acknowledged for good before; what was not comes now; and then nothing does."""
    where = f"{progress.topic} {progress.name}:"
    audit = watch.told.audits[progress.topic]
    asked = {found.id for found in audit if progress.is_asked(found.id, watch.now)}
    missing = {found.id: None for found in audit if found.id not in asked or found.id not in progress.seen}
    came = await _receive_all(client, progress, watch, missing)
    for found in audit:
        if found.id not in progress.seen:
            watch.violated("C7", f"{where} {found.payload.decode()} at {found.id} never came")
        elif found.id not in asked and found.id not in came:
            watch.violated("T5", f"{where} {found.id} was not acknowledged, and came no more")
    for message_id in await _receive_all(client, progress, watch, {}):
        watch.violated("T5", f"{where} {message_id} came though everything was acknowledged")


async def _receive_all(
    client: PulsarClient, progress: Progress, watch: TopicWatch, missing: dict[MessageId, None]
) -> dict[MessageId, None]:
    """Until nothing comes any more; all of it is acknowledged, with a receipt. `missing` is what has to come."""
    came: dict[MessageId, None] = {}
    for _ in range(_TRIES_MAX):
        try:
            consumer = await open_consumer(client, progress, AUDITOR, _QUEUE_MAX)
            try:
                await _receive(consumer, progress, came, missing, watch)
            finally:
                await consumer.aclose()
        except MagnetarError as error:
            watch.note(f"draining {progress.name} of {progress.topic} failed: {error}")
        else:
            return came
        await asyncio.sleep(0.2)
    watch.violated("V2", f"{progress.name} of {progress.topic} cannot be drained in a healed world")
    return came


async def _receive(
    consumer: Consumer,
    progress: Progress,
    came: dict[MessageId, None],
    missing: dict[MessageId, None],
    watch: TopicWatch,
) -> None:
    quiet = 0
    while quiet < (_QUIET_MAX if missing else 1):
        try:
            message = await consumer.receive(_QUIET_S)
        except TimeoutError:
            quiet += 1
            continue
        message_id = plain(message.id)
        if progress.is_confirmed(message_id):
            watch.violated("T5", f"{progress.topic} {progress.name}: {message.id} was acknowledged, and came again")
        received(watch, progress, AUDITOR, message)
        came[message_id] = None
        missing.pop(message_id, None)
        await acknowledge(watch, progress, consumer, message)


def _check_backlog(cluster: TopicCluster, progress: Progress, watch: TopicWatch) -> None:
    topic = cluster.served(progress.topic)
    if topic is None:
        watch.violated("V2", f"no broker serves {progress.topic} in a healed world")
    elif left := topic.subscriptions.require(progress.name).backlog_entries:
        watch.violated("T5", f"{progress.topic} {progress.name}: a backlog of {left}, and everything is acknowledged")


# --- the end ----------------------------------------------------------------------------------------------------------


async def end(cluster: TopicCluster) -> None:
    """Clients have ended by themselves, if they could; then the brokers end."""
    for name, app in cluster.apps.items():
        if not app.is_done and cluster.world.process(name) is not None:
            app.is_done = True
            cluster.crash(name, Crash.KILL)
    for name, node in cluster.brokers.items():
        await _wait_work(node)
        node.stop()
        await cluster.wait_exit(name)
    await asyncio.sleep(_FAREWELL_S)


async def _wait_work(node: BrokerNode) -> None:
    """Loads that the operator asked for: each has its own limit."""
    if work := [task for task in node.work if not task.done()]:
        await asyncio.wait(work, timeout=SETTLE_LIMIT_S)


TOPICS: Final = Scenario(
    name="topics",
    world_seed="topics/{}",
    faults=FAULTS,
    must_happen=(
        "receipts",
        "take-overs",
        "topics lost",
        "duplicates",
        "sends of unknown outcome",
        "acks confirmed",
        "sessions expired",
        "calm seeds",
        "compactions",
    ),
    invariants=ALL,
    events_max=3_000_000,
    draw=draw,
    watch=TopicWatch,
    cluster=TopicCluster,
    workload=TopicWorkload,
    nemesis=TopicNemesis,
    settle=settle,
    end=end,
    observed=observed,
)
