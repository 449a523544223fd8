"""Connections, lookups and what a broker may do to them, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.client import ClientOptions, PulsarClient
from magnetar.client.brokers import Address, parse_url
from magnetar.errors import (
    BrokerTimeoutError,
    BrokerUnavailableError,
    ClosedError,
    ConfigError,
    InvalidNameError,
    TopicNotFoundError,
    UnsupportedRequestError,
)
from magnetar.testing.waiting import until
from magnetar.wire.pulsar import encode
from magnetar.wire.pulsar.frames import Frame
from magnetar.wire.pulsar.proto import pulsar_api_pb2 as api
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand, CommandLookupTopicResponse
from tests.unit.client.fake_broker import TOPIC, FakeBroker, Link, lookup_answer, run


def test_producers_and_consumers_of_a_broker_share_its_connection() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        await asyncio.gather(*(client.producer(f"t{at}") for at in range(5)), client.consumer("t", "s"))
        assert len(broker.links) == 1
        assert broker.commands(BaseCommand.CONNECT)[0].connect.protocol_version == 21

    run(scenario)


def test_a_lookup_follows_redirects() -> None:
    other = FakeBroker("other")

    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        broker.answers[BaseCommand.LOOKUP] = lambda _link, frame: lookup_answer(
            frame, "pulsar://other:6650", CommandLookupTopicResponse.Redirect
        )
        await client.producer("t")
        assert other.count(BaseCommand.LOOKUP) == 1
        assert other.count(BaseCommand.PRODUCER) == 1

    run(scenario, others=(other,))


def test_endless_redirects_end() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        broker.answers[BaseCommand.LOOKUP] = lambda _link, frame: lookup_answer(
            frame, "pulsar://broker:6650", CommandLookupTopicResponse.Redirect
        )
        with pytest.raises(BrokerUnavailableError, match="redirected 5 times"):
            await client.producer("t")

    run(scenario, options=ClientOptions(redirects_max=5, open_timeout_s=1.0))


@pytest.mark.parametrize("url", ["", "http://x", "pulsar+ssl://x:1", "pulsar://"])
def test_a_lookup_that_names_no_broker_is_no_answer(url: str) -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        broker.answers[BaseCommand.LOOKUP] = lambda _link, frame: lookup_answer(frame, url)
        with pytest.raises(BrokerUnavailableError, match="an invalid address"):
            await client.producer("t")

    run(scenario, options=ClientOptions(open_timeout_s=1.0))


def test_behind_a_proxy_connections_say_which_broker_they_want() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        def through(_link: Link, frame: Frame) -> bytes:
            command = BaseCommand(type=BaseCommand.LOOKUP_RESPONSE)
            answer = command.lookupTopicResponse
            answer.request_id = frame.command.lookupTopic.request_id
            answer.response = CommandLookupTopicResponse.Connect
            answer.brokerServiceUrl, answer.proxy_through_service_url = "pulsar://hidden:6650", True
            return encode.encode_command(command)

        broker.answers[BaseCommand.LOOKUP] = through
        await client.producer("t")
        assert broker.commands(BaseCommand.CONNECT)[-1].connect.proxy_to_broker_url == "hidden:6650"

    run(scenario)


def test_a_topic_that_is_not_there_ends_the_opening_at_once() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        def failed(_link: Link, frame: Frame) -> bytes:
            command = BaseCommand(type=BaseCommand.PARTITIONED_METADATA_RESPONSE)
            answer = command.partitionMetadataResponse
            answer.request_id = frame.command.partitionMetadata.request_id
            answer.response = api.CommandPartitionedTopicMetadataResponse.Failed
            answer.error, answer.message = api.TopicNotFound, "no such topic"
            return encode.encode_command(command)

        broker.answers[BaseCommand.PARTITIONED_METADATA] = failed
        with pytest.raises(TopicNotFoundError, match="no such topic"):
            await client.producer("t")

    run(scenario)


def test_the_next_address_of_the_url_is_tried_when_one_cannot_be_reached() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        await client.producer("t")
        assert broker.count(BaseCommand.PRODUCER) == 1

    run(scenario, url="pulsar://nowhere:6650,broker:6650")


def test_a_broker_that_cannot_be_reached_is_named() -> None:
    async def scenario(client: PulsarClient, _broker: FakeBroker) -> None:
        with pytest.raises(BrokerUnavailableError, match="cannot connect to broker nowhere:6650"):
            await client.partitions_of("t")

    run(scenario, url="pulsar://nowhere:6650")


def test_a_broker_that_accepts_and_says_nothing_is_given_up() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        broker.answers[BaseCommand.CONNECT] = lambda _link, _frame: b""
        loop = asyncio.get_running_loop()
        before = loop.time()
        with pytest.raises(BrokerUnavailableError, match="no answer within 3 s"):
            await client.partitions_of("t")
        assert loop.time() - before == pytest.approx(3.0, abs=0.1)

    run(scenario, options=ClientOptions(connect_timeout_s=3.0))


def test_a_refused_connect_is_the_brokers_own_error() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        broker.answers[BaseCommand.CONNECT] = lambda _link, _frame: encode.encode_error(
            2**64 - 1, api.UnsupportedVersionError, "too old"
        )
        with pytest.raises(UnsupportedRequestError, match="too old"):
            await client.partitions_of("t")

    run(scenario)


def test_a_request_that_is_not_answered_fails_in_time_and_a_late_answer_does_no_harm() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        late: list[bytes] = []

        def keep(link: Link, frame: Frame) -> bytes:
            late.append(link.on_partitioned_metadata(frame))
            return b""

        broker.answers[BaseCommand.PARTITIONED_METADATA] = keep
        with pytest.raises(BrokerTimeoutError, match="did not answer within 4 s"):
            await client.partitions_of("t")
        broker.answers.clear()
        broker.links[0].transport.write(late[0])
        assert await client.partitions_of("t") == 0

    run(scenario, options=ClientOptions(request_timeout_s=4.0))


def test_a_producer_that_was_not_answered_in_time_is_closed_in_case_the_broker_has_it() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        broker.answers[BaseCommand.PRODUCER] = lambda _link, _frame: b""
        with pytest.raises(BrokerTimeoutError):
            await client.producer("t")
        await until(lambda: broker.count(BaseCommand.CLOSE_PRODUCER) > 0, "it is closed")

    run(scenario, options=ClientOptions(request_timeout_s=2.0, open_timeout_s=3.0))


def test_a_silent_connection_is_asked_whether_it_lives_and_given_up_if_not() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        await client.producer("t")
        await until(lambda: broker.count(BaseCommand.PING) >= 2, "it asks")
        assert len(broker.links) == 1
        broker.answers[BaseCommand.PING] = lambda _link, _frame: b""
        await until(lambda: broker.count(BaseCommand.PRODUCER) == 2, "it connects anew")
        assert len(broker.links) == 2

    run(scenario, options=ClientOptions(keep_alive_s=5.0))


def test_a_ping_is_answered() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        await client.partitions_of("t")
        broker.links[0].transport.write(encode.PING)
        await until(lambda: broker.count(BaseCommand.PONG) == 1, "the answer")

    run(scenario)


@pytest.mark.parametrize("garbage", [b"\xff\xff\xff\xff", b"\x00\x00\x00\x06\x00\x00\x00\x02\xff\xff"])
def test_a_broker_that_sends_what_it_must_not_loses_the_connection(garbage: bytes) -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        broker.answers[BaseCommand.PARTITIONED_METADATA] = lambda _link, _frame: garbage
        with pytest.raises(BrokerUnavailableError, match="sent what it must not"):
            await client.partitions_of("t")
        broker.answers.clear()
        assert await client.partitions_of("t") == 0
        assert len(broker.links) == 2

    run(scenario)


def test_a_frame_larger_than_the_buffer_is_received() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        names = [f"persistent://public/default/{at:0100d}" for at in range(5_000)]
        for name in names:
            broker.topics[name] = []
        assert await client.topics_of("public/default") == names

    run(scenario)


def test_a_closed_client_closes_all_and_takes_nothing_more() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        producer = await client.producer("t")
        await client.consumer("t", "s")
        sent = producer.send_nowait(b"x")
        await client.aclose()
        assert sent.done()
        assert broker.count(BaseCommand.CLOSE_PRODUCER) == broker.count(BaseCommand.CLOSE_CONSUMER) == 1
        await until(lambda: not broker.links[0].is_up, "the connection ends")
        with pytest.raises(ClosedError, match="client is closed"):
            await client.producer("t")

    run(scenario)


def test_an_opening_that_is_cancelled_leaves_nothing_behind() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        broker.answers[BaseCommand.PRODUCER] = lambda _link, _frame: b""
        opening = asyncio.create_task(client.producer("t"))
        await until(lambda: broker.count(BaseCommand.PRODUCER) == 1, "it asks")
        opening.cancel()
        await asyncio.wait([opening])
        assert opening.cancelled()
        broker.answers.clear()
        await client.producer("t")
        assert broker.count(BaseCommand.PRODUCER) == 2

    run(scenario)


@pytest.mark.parametrize("topic", ["", "a/b", "a//c", "persistent://a/b", "kafka://a/b/c"])
def test_a_topic_that_is_none_is_refused_here(topic: str) -> None:
    async def scenario(client: PulsarClient, _broker: FakeBroker) -> None:
        with pytest.raises(InvalidNameError, match="is not a topic"):
            await client.producer(topic)

    run(scenario)


def test_addresses_of_a_service_url() -> None:
    assert parse_url("pulsar://a") == [Address("a", 6650)]
    assert parse_url("pulsar://a:1,[::1]:2") == [Address("a", 1), Address("::1", 2)]
    assert TOPIC == "persistent://public/default/t"


@pytest.mark.parametrize(
    "url", ["a:6650", "http://a", "pulsar://", "pulsar://a,", "pulsar://a:x", "pulsar://[::1", "pulsar+ssl://a:6651"]
)
def test_a_service_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        parse_url(url)


def test_a_port_that_speaks_http_is_named_as_such() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        broker.answers[BaseCommand.CONNECT] = lambda _link, _frame: b"HTTP/1.1 400 Bad Request\r\n\r\n"
        with pytest.raises(BrokerUnavailableError, match=r"broker:6650 speaks HTTP.*usually 6650"):
            await client.check_reachable()

    run(scenario)
