"""The compacted view of a topic, when all is healed: messages in chunks among others, compaction, and a reader.

Script:    two producers publish entries one after the other, in an order that the seed draws: messages in chunks, of
           which some are never finished and some only after the first compaction, and batches of which the last message
           deletes its key. Each entry has its receipt before the next is sent, so the order is known.
Truth:     of every key the message that came last, a message in chunks being where its last chunk is: of these entries,
           and of what the seed's own producers have published before (the audit).
Read next: invariants.py (C8)
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from random import Random
from typing import Final, NamedTuple

from magnetar.broker.upkeep.compaction import CompactionStatus
from magnetar.client import EARLIEST, MessageId, Producer, ProducerOptions, PulsarClient
from magnetar.client.producing.sender import PendingSend
from magnetar.errors import MagnetarError
from magnetar.sim.seeds import seeded
from magnetar.sim.topics.cluster import BrokerNode, TopicCluster
from magnetar.sim.topics.watch import TopicWatch
from magnetar.wire.pulsar.frames import with_checksum
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import MessageMetadata

_COMPACTION_LIMIT_S: Final = 10.0
_COMPACTIONS_TRIED_MAX: Final = 5
_COMPACTED_AGAIN_S: Final = 0.5
_NEXT_LIMIT_S: Final = 2.0  # For a message that the broker has announced.
_PRODUCERS: Final = ("chunker-0", "chunker-1")
_MESSAGES: Final = 4  # Of each.
_KEYS: Final = 3


class Chunk(NamedTuple):
    """An entry of a message in chunks."""

    producer: str
    message: int
    number: int
    of: int
    key: str

    @property
    def uuid(self) -> str:
        return f"{self.producer}-{self.message}"

    @property
    def payload(self) -> bytes:
        return f"<{self.uuid}/{self.number}>".encode()


Values = dict[str, bytes]
"""Key → payload of its last message."""


# --- compaction, asked for at the broker ------------------------------------------------------------------------------


async def compact(cluster: TopicCluster, node: BrokerNode, name: str) -> None:
    """What an operator asks for; it may fail for any reason that a world under faults has."""
    topic = node.served(name)
    if topic is None or topic.compaction.status is CompactionStatus.RUNNING:
        return
    topic.compaction.begin()
    async with asyncio.timeout(_COMPACTION_LIMIT_S):
        await topic.compaction.wait()
    if topic.compaction.status is CompactionStatus.SUCCESS:
        cluster.watch.counters["compactions"] += 1
    cluster.watch.note(f"{node.name} compacted {name}: {topic.compaction.status}")


async def _compact_for_certain(cluster: TopicCluster, name: str) -> None:
    """An attempt may fail where the patience with bookies is as short as a disk is slow, and no bookie is to spare. An
    operator then asks again."""
    node = cluster.owner_of(name)
    why: str | None = "it is not served"
    for attempt in range(_COMPACTIONS_TRIED_MAX):
        await asyncio.sleep(attempt * _COMPACTED_AGAIN_S)
        task = cluster.spawn(node, compact(cluster, node, name), f"{node.name} compacts {name}")
        await asyncio.wait([task])
        topic = node.served(name)
        if topic is not None and topic.compaction.status is CompactionStatus.SUCCESS:
            return
        why = why if topic is None else topic.compaction.last_error
    cluster.watch.violated("V2", f"{name} cannot be compacted in a healed world: {why}")


# --- the script -------------------------------------------------------------------------------------------------------


async def check_compacted_views(cluster: TopicCluster, watch: TopicWatch, client: PulsarClient) -> None:
    for name in cluster.topic_options.topic_names:
        random = seeded(f"{cluster.options.seed}/compacting/{name}")
        values = _values_of_audit(watch, name)
        try:
            await _publish(cluster, client, name, random, values)
            await _compact_for_certain(cluster, name)
            found = await _read(client, name)
        except (MagnetarError, TimeoutError) as error:
            watch.violated("V2", f"the compacted view of {name} cannot be made or read: {error!r}")
        else:
            watch.tell("on_compacted_view", name, values, found)


def _values_of_audit(watch: TopicWatch, name: str) -> Values:
    values: Values = {}
    for found in watch.told.audits[name]:
        key = watch.told.sends[name, found.producer].key(found.sequence_id)
        if key is not None:
            _replace(values, key, found.payload)
    return values


def _replace(values: Values, key: str, payload: bytes | None) -> None:
    """The last one is last in order, too."""
    values.pop(key, None)
    if payload is not None:
        values[key] = payload


async def _publish(cluster: TopicCluster, client: PulsarClient, name: str, random: Random, values: Values) -> None:
    options = ProducerOptions(batching=True, batch_delay_s=1.0, batch_messages_max=2, first_sequence_id=0)
    batcher = await client.producer(name, options)
    chunkers = {each: await client.producer(name, ProducerOptions(name=each)) for each in _PRODUCERS}
    try:
        script = list(_script(random))
        half = random.randrange(len(script))
        for at, chunk in enumerate(script):
            if at == half:
                await _compact_for_certain(cluster, name)
            await _send_chunk(chunkers[chunk.producer], chunk)
            if chunk.number == chunk.of - 1:
                _replace(values, chunk.key, b"".join(part.payload for part in _parts(chunk)))
            if random.random() < 0.2:
                await _send_batch(batcher, random, values, at)
        await _send_batch(batcher, random, values, len(script))
    finally:
        for producer in (batcher, *chunkers.values()):
            await producer.aclose()


def _parts(chunk: Chunk) -> Iterator[Chunk]:
    return (chunk._replace(number=number) for number in range(chunk.of))


def _script(random: Random) -> Iterator[Chunk]:
    """Entries of two producers, interleaved. A message may stay unfinished, but for each producer's last."""
    left = {producer: _chunks_of(producer, random) for producer in _PRODUCERS}
    while queues := [queue for queue in left.values() if queue]:
        yield random.choice(queues).pop(0)


def _chunks_of(producer: str, random: Random) -> list[Chunk]:
    found: list[Chunk] = []
    for message in range(_MESSAGES):
        of, key = random.randint(2, 4), f"c{random.randrange(_KEYS)}"
        is_finished = message == _MESSAGES - 1 or random.random() < 0.7
        sent = of if is_finished else random.randint(1, of - 1)
        found += [Chunk(producer, message, number, of, key) for number in range(sent)]
    return found


async def _send_chunk(producer: Producer, chunk: Chunk) -> MessageId:
    """Our client publishes no chunks, so the entry is made here. Each has a sequence id of its own."""
    (part,) = producer._parts
    part.last_sequence_id += 1
    metadata = MessageMetadata(producer_name=part.name, sequence_id=part.last_sequence_id, publish_time=1)
    metadata.partition_key, metadata.uuid = chunk.key, chunk.uuid
    metadata.chunk_id, metadata.num_chunks_from_msg = chunk.number, chunk.of
    metadata.total_chunk_msg_size = sum(len(each.payload) for each in _parts(chunk))
    loop = asyncio.get_running_loop()
    sent: asyncio.Future[MessageId] = loop.create_future()
    part._submit(
        PendingSend(
            sequence_id=part.last_sequence_id,
            highest_sequence_id=0,
            messages=1,
            body=with_checksum(metadata.SerializeToString(), chunk.payload),
            since=loop.time(),
            on_done=partial(_resolve, sent),
            on_failed=sent.set_exception,
        )
    )
    return await sent


def _resolve(sent: asyncio.Future[MessageId], ledger_id: int, entry_id: int) -> None:
    sent.set_result(MessageId(ledger_id, entry_id))


async def _send_batch(producer: Producer, random: Random, values: Values, at: int) -> None:
    """A message that stays, and one that deletes a key: the last of the batch is compacted out."""
    deleted = f"c{random.randrange(_KEYS)}"
    payload = f"<batch {at}>".encode()
    sent = [producer.send_nowait(payload, key=f"b{at}"), producer.send_nowait(None, key=deleted)]
    _replace(values, f"b{at}", payload)
    _replace(values, deleted, None)
    await asyncio.wait(sent)
    for each in sent:
        each.result()


async def _read(client: PulsarClient, name: str) -> list[tuple[str | None, bytes]]:
    """All of the compacted view, as an application reads it: asks whether there is more, and takes it."""
    reader = await client.reader(name, EARLIEST, read_compacted=True)
    found: list[tuple[str | None, bytes]] = []
    try:
        while await reader.has_next():
            try:
                message = await reader.read(_NEXT_LIMIT_S)
            except TimeoutError:
                found.append((None, b"a message that the broker announced and did not deliver"))
                break
            found.append((message.key, message.payload))
    finally:
        await reader.aclose()
    return found
