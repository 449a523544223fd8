"""Producers against a broker that misbehaves when a test wants it, in virtual time."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from magnetar.client import EARLIEST, ClientOptions, MessageId, ProducerOptions, PulsarClient
from magnetar.client.producing import producer as topic_producer
from magnetar.errors import (
    BrokerError,
    BrokerTimeoutError,
    BrokerUnavailableError,
    ClosedError,
    InvalidMessageError,
    MessageTooLargeError,
    ProducerBusyError,
    SendQueueFullError,
    TopicTerminatedError,
)
from magnetar.testing.waiting import until
from magnetar.wire.compression import decompress
from magnetar.wire.pulsar import encode
from magnetar.wire.pulsar.entry import messages_of_batch, parse_entry
from magnetar.wire.pulsar.frames import Frame, verify_checksum
from magnetar.wire.pulsar.proto import pulsar_api_pb2 as api
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import NONE, ZLIB, BaseCommand
from tests.unit.client.fake_broker import LEDGER, TOPIC, FakeBroker, Link, run

SINGLE = ProducerOptions(batching=False)


def _payloads(stored: list[bytes]) -> list[bytes]:
    found: list[bytes] = []
    for entry in stored:
        assert verify_checksum(entry)
        head = parse_entry(entry)
        payload = decompress(head.metadata.compression, entry[head.payload_offset :], head.metadata.uncompressed_size)
        if head.metadata.HasField("num_messages_in_batch"):
            found += [bytes(body) for _, body in messages_of_batch(payload, head.metadata.num_messages_in_batch)]
        else:
            found.append(payload)
    return found


def test_a_message_is_stored_with_what_was_said_about_it() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        producer = await client.producer("t", SINGLE)
        stored = await producer.send(
            b"hello", key="k", ordering_key=b"o", properties={"a": "1"}, event_ms=5, deliver_at_ms=9, sequence_id=40
        )
        assert stored == MessageId(LEDGER, 0)
        assert await producer.send(None, key="k") == MessageId(LEDGER, 1)
        first, second = (parse_entry(entry) for entry in broker.topics[TOPIC])
        metadata = first.metadata
        assert (metadata.partition_key, metadata.ordering_key, metadata.event_time) == ("k", b"o", 5)
        assert (metadata.deliver_at_time, metadata.sequence_id, metadata.producer_name) == (9, 40, "fake-0-1")
        assert {pair.key: pair.value for pair in metadata.properties} == {"a": "1"}
        assert (second.metadata.sequence_id, second.metadata.null_value) == (41, True)
        assert producer.last_sequence_id == 41

    run(scenario)


def test_messages_sent_together_are_one_entry() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        producer = await client.producer("t", ProducerOptions(batch_messages_max=3, compression=ZLIB))
        sent = [producer.send_nowait(b"%d" % at * 50, key=f"k{at}") for at in range(7)]
        await producer.flush()
        assert [future.result() for future in sent[2:4]] == [MessageId(LEDGER, 0, 2), MessageId(LEDGER, 1, 0)]
        heads = [parse_entry(entry) for entry in broker.topics[TOPIC]]
        assert [head.metadata.num_messages_in_batch for head in heads] == [3, 3, 1]
        assert [(h.metadata.sequence_id, h.metadata.highest_sequence_id) for h in heads] == [(0, 2), (3, 5), (6, 6)]
        assert _payloads(broker.topics[TOPIC]) == [b"%d" % at * 50 for at in range(7)]
        sends = broker.commands(BaseCommand.SEND)
        assert [command.send.num_messages for command in sends] == [3, 3, 1]

    run(scenario)


def test_a_batch_leaves_when_its_first_message_has_waited_long_enough() -> None:
    async def scenario(client: PulsarClient, _broker: FakeBroker) -> None:
        producer = await client.producer("t", ProducerOptions(batch_delay_s=5.0))
        loop = asyncio.get_running_loop()
        before = loop.time()
        await asyncio.gather(producer.send(b"a"), producer.send(b"b"))
        assert 5.0 <= loop.time() - before < 5.5

    run(scenario)


def test_a_batch_never_grows_beyond_its_bytes() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        producer = await client.producer("t", ProducerOptions(batch_bytes_max=1_000))
        await asyncio.gather(*(producer.send(bytes(400)) for _ in range(4)))
        assert [parse_entry(entry).metadata.num_messages_in_batch for entry in broker.topics[TOPIC]] == [2, 2]

    run(scenario)


def test_a_message_larger_than_the_broker_takes_is_refused_and_others_are_not() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        broker.max_message_size = 1_000
        producer = await client.producer("t", SINGLE)
        with pytest.raises(MessageTooLargeError, match="1,001 bytes exceeds the broker's limit of 1,000 bytes"):
            await producer.send(bytes(1_001))
        with pytest.raises(MessageTooLargeError, match="limit of 1,000 bytes"):
            await producer.send(bytes(999))
        await producer.send(bytes(900))

    run(scenario)


@pytest.mark.parametrize("compression", [NONE, ZLIB])
def test_a_large_message_is_sent_in_chunks_that_a_consumer_joins(compression: int) -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        broker.max_message_size = 1_000
        options = ProducerOptions(chunking=True, compression=compression)  # type: ignore[arg-type]
        producer = await client.producer("t", options)
        large = random.Random(1).randbytes(3_500)
        await asyncio.gather(
            *(producer.send(payload, key="k", properties={"a": "x" * 200}) for payload in (b"small", large, b"last"))
        )
        assert max(map(len, broker.topics[TOPIC])) <= 1_000
        assert all(verify_checksum(entry) for entry in broker.topics[TOPIC])
        reader = await client.reader("t", EARLIEST)
        read = [await reader.read() for _ in range(3)]
        assert [message.payload for message in read] == [b"small", large, b"last"]
        assert len(read[1].chunk_ids) > 3
        assert (read[1].key, read[1].properties) == ("k", {"a": "x" * 200})

    run(scenario)


def test_chunks_do_not_help_if_the_metadata_alone_is_too_large() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        broker.max_message_size = 1_000
        producer = await client.producer("t", ProducerOptions(chunking=True))
        with pytest.raises(InvalidMessageError, match="the key and the properties"):
            await producer.send(bytes(2_000), key="k" * 1_000)
        await producer.send(b"next")

    run(scenario)


def test_send_waits_for_room_and_send_nowait_does_not() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        producer = await client.producer("t", ProducerOptions(pending_messages_max=2))
        producer.send_nowait(b"1")
        producer.send_nowait(b"2")
        with pytest.raises(SendQueueFullError):
            producer.send_nowait(b"3")
        await producer.send(b"4")
        assert _payloads(broker.topics[TOPIC]) == [b"1", b"2", b"4"]

    run(scenario)


@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_what_has_no_receipt_is_sent_again_in_order_after_a_lost_connection(seed: str) -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        producer = await client.producer("t", SINGLE)
        await producer.send(b"first")
        broker.answers[BaseCommand.SEND] = lambda _link, _frame: b""  # Received, and never answered.
        sent = [producer.send_nowait(b"%d" % at) for at in range(5)]
        await until(lambda: broker.count(BaseCommand.SEND) == 6, "the broker has them")
        broker.answers.clear()
        broker.disconnect_all()
        await asyncio.gather(*sent)
        assert _payloads(broker.topics[TOPIC]) == [b"first", b"0", b"1", b"2", b"3", b"4"]
        again = broker.commands(BaseCommand.PRODUCER)[-1].producer
        assert (again.epoch, again.producer_name) == (1, "fake-0-1")
        assert [command.send.sequence_id for command in broker.commands(BaseCommand.SEND)][-5:] == [1, 2, 3, 4, 5]

    run(scenario, seed=seed)


def test_a_receipt_that_is_ahead_of_the_first_message_is_not_believed() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        producer = await client.producer("t", SINGLE)

        def skip_the_first(link: Link, frame: Frame) -> bytes | None:
            return b"" if frame.command.send.sequence_id == 0 else None

        broker.answers[BaseCommand.SEND] = skip_the_first
        sent = [producer.send_nowait(b"%d" % at) for at in range(2)]
        await until(lambda: broker.count(BaseCommand.CLOSE_PRODUCER) == 1, "it begins anew")
        broker.answers.clear()
        await asyncio.gather(*sent)
        assert _payloads(broker.topics[TOPIC]) == [b"1", b"0", b"1"]

    run(scenario)


def test_an_error_that_passes_is_tried_again_and_one_that_does_not_fails_its_message_alone() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        producer = await client.producer("t", SINGLE)
        errors = [api.PersistenceError, api.TopicTerminatedError]

        def refuse(_link: Link, frame: Frame) -> bytes | None:
            send = frame.command.send
            return encode.encode_send_error(send.producer_id, send.sequence_id, errors.pop(0), "no") if errors else None

        broker.answers[BaseCommand.SEND] = refuse
        with pytest.raises(TopicTerminatedError, match="no"):
            await producer.send(b"refused")
        await producer.send(b"taken")
        assert broker.count(BaseCommand.PRODUCER) == 2
        assert _payloads(broker.topics[TOPIC]) == [b"taken"]

    run(scenario)


def test_messages_without_a_receipt_for_too_long_fail_together_and_their_outcome_is_unknown() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        producer = await client.producer("t", ProducerOptions(batching=False, send_timeout_s=7.0))
        broker.answers[BaseCommand.SEND] = lambda _link, _frame: b""
        loop = asyncio.get_running_loop()
        before = loop.time()
        sent = [producer.send_nowait(b"x") for _ in range(3)]
        await producer.flush()
        assert loop.time() - before == pytest.approx(7.0, abs=0.1)
        for future in sent:
            error = future.exception()
            assert isinstance(error, BrokerTimeoutError)
            assert error.outcome_unknown
        broker.answers.clear()
        await producer.send(b"goes on")

    run(scenario)


def test_a_producer_begins_behind_what_the_broker_knows_of_its_name() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        broker.last_sequence_id = 41
        producer = await client.producer("t", ProducerOptions(name="mine"))
        assert (producer.name, producer.last_sequence_id) == ("mine", 41)
        await producer.send(b"x")
        assert broker.commands(BaseCommand.SEND)[0].send.sequence_id == 42
        other = await client.producer("t", ProducerOptions(name="mine", first_sequence_id=7))
        assert other.last_sequence_id == 6

    run(scenario)


def test_a_duplicate_has_no_id() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        broker.answers[BaseCommand.SEND] = lambda _link, frame: encode.encode_send_receipt(
            frame.command.send.producer_id, frame.command.send.sequence_id, 0, -1, -1
        )
        producer = await client.producer("t")
        assert await producer.send(b"x") == MessageId(-1, -1)

    run(scenario)


def test_a_name_that_is_taken_ends_the_opening_at_once() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        broker.answers[BaseCommand.PRODUCER] = lambda _link, frame: encode.encode_error(
            frame.command.producer.request_id, api.ProducerBusy, "somebody has it"
        )
        with pytest.raises(ProducerBusyError, match="ProducerBusy: somebody has it"):
            await client.producer("t", ProducerOptions(name="taken"))
        assert broker.count(BaseCommand.PRODUCER) == 1

    run(scenario)


def test_an_opening_that_is_refused_for_now_is_tried_until_its_time_is_over() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        broker.answers[BaseCommand.PRODUCER] = lambda _link, frame: encode.encode_error(
            frame.command.producer.request_id, api.ServiceNotReady, "later"
        )
        loop = asyncio.get_running_loop()
        before = loop.time()
        with pytest.raises(BrokerError, match="later"):
            await client.producer("t")
        assert 5.0 < loop.time() - before <= 10.1
        assert broker.count(BaseCommand.PRODUCER) > 3

    run(scenario, options=ClientOptions(open_timeout_s=10.0))


def test_a_producer_without_a_broker_for_too_long_gives_up() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        producer = await client.producer("t", SINGLE)
        broker.answers[BaseCommand.CONNECT] = lambda link, _frame: link.transport.abort() or b""  # type: ignore[func-returns-value]
        broker.disconnect_all()
        with pytest.raises(BrokerUnavailableError):
            await producer.send(b"x")
        with pytest.raises(BrokerUnavailableError):
            producer.send_nowait(b"y")

    run(scenario, options=ClientOptions(reconnect_timeout_s=20.0, connect_timeout_s=2.0))


def test_a_producer_may_wait_for_its_turn_longer_than_a_request() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        loop = asyncio.get_running_loop()

        def answer(request_id: int, is_ready: bool) -> bytes:
            command = BaseCommand(type=BaseCommand.PRODUCER_SUCCESS)
            command.producer_success.request_id, command.producer_success.producer_name = request_id, "p"
            command.producer_success.producer_ready = is_ready
            command.producer_success.topic_epoch = 3
            return encode.encode_command(command)

        def wait(link: Link, frame: Frame) -> bytes:
            request_id = frame.command.producer.request_id
            link.producers[frame.command.producer.producer_id] = TOPIC
            loop.call_later(100.0, lambda: link.transport.write(answer(request_id, True)))
            return answer(request_id, False)

        broker.answers[BaseCommand.PRODUCER] = wait
        producer = await client.producer("t", ProducerOptions(access_mode=api.WaitForExclusive))
        await producer.send(b"at last")
        assert loop.time() > 100.0

    run(scenario)


def test_closing_waits_for_what_was_sent_and_nothing_is_taken_after_it() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        producer = await client.producer("t")
        sent = producer.send_nowait(b"last")
        await producer.aclose()
        assert sent.result() == MessageId(LEDGER, 0, 0)
        assert broker.count(BaseCommand.CLOSE_PRODUCER) == 1
        with pytest.raises(ClosedError, match="is closed"):
            producer.send_nowait(b"too late")

    run(scenario)


def test_a_partitioned_topic_gets_keys_where_java_sends_them_and_the_rest_in_turn() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        broker.partitions[TOPIC] = 3
        producer = await client.producer("t", SINGLE)
        ids = [await producer.send(b"x", key="hello") for _ in range(3)]
        assert [message_id.partition for message_id in ids] == [99162322 % 3] * 3
        ids = [await producer.send(b"x") for _ in range(6)]
        assert sorted(message_id.partition for message_id in ids) == [0, 0, 1, 1, 2, 2]

    run(scenario)


def test_messages_that_wait_for_their_batch_fail_with_those_before_them() -> None:
    """Sent later, they would overtake: what is sent again then looks like a repeat to the broker."""

    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        options = ProducerOptions(batch_messages_max=1_000, batch_delay_s=5.0, send_timeout_s=2.0)
        producer = await client.producer("t", options)
        broker.answers[BaseCommand.SEND] = lambda _link, _frame: b""
        first = producer.send_nowait(b"first")
        flushing = asyncio.create_task(producer.flush())
        await until(lambda: broker.count(BaseCommand.SEND) == 1, "the first message does not arrive")
        second = producer.send_nowait(b"second")
        for sent in (first, second):
            with pytest.raises(BrokerTimeoutError):
                await sent
        await flushing
        await asyncio.sleep(10.0)
        assert broker.count(BaseCommand.SEND) == 1

    run(scenario)


def test_a_producer_that_is_closed_while_the_broker_makes_it_is_closed_there_too() -> None:
    """Else the broker would have it when it is made, and its name would be taken."""

    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        broker.answers[BaseCommand.PRODUCER] = lambda _link, _frame: b""
        opening = asyncio.create_task(client.producer("t", SINGLE))
        await until(lambda: broker.count(BaseCommand.PRODUCER) == 1, "no producer is asked for")
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        await until(lambda: broker.count(BaseCommand.CLOSE_PRODUCER) == 1, "it is not closed")
        made, closed = broker.commands(BaseCommand.PRODUCER)[0], broker.commands(BaseCommand.CLOSE_PRODUCER)[0]
        assert closed.close_producer.producer_id == made.producer.producer_id

    run(scenario)


@pytest.mark.parametrize("options", [SINGLE, ProducerOptions()])
@pytest.mark.parametrize(
    "said",
    [
        {"event_ms": -1},
        {"event_ms": 2**63},
        {"sequence_id": -1},
        {"sequence_id": 2**63},
        {"deliver_at_ms": 2**63},
        {"key": "half a pair: \ud83d"},
        {"properties": {"a": "\ud83d"}},
        {"properties": {"\ud83d": "a"}},
    ],
)
def test_a_message_that_cannot_be_sent_is_refused_at_once_and_harms_no_other(
    options: ProducerOptions, said: dict[str, Any]
) -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        producer = await client.producer("t", options)
        good = producer.send_nowait(b"before")
        with pytest.raises(InvalidMessageError, match="cannot be sent"):
            producer.send_nowait(b"bad", **said)
        await producer.send(b"after")
        assert good.done()
        assert _payloads(broker.topics[TOPIC]) == [b"before", b"after"]

    run(scenario)


def test_a_batch_that_cannot_be_made_fails_all_that_are_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> bytes:
        raise ValueError("out of range")

    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        producer = await client.producer("t")
        monkeypatch.setattr(topic_producer, "seal_batch", broken)
        sent = [producer.send_nowait(b"a"), producer.send_nowait(b"b")]
        await producer.flush()
        for each in sent:
            with pytest.raises(ValueError, match="out of range"):
                await each

    run(scenario)
