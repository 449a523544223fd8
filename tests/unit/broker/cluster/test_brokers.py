"""Brokers of a cluster, as clients and operators see them: lookups, redirects, unloads, splits and hand-over."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import cast

import pytest

from magnetar.broker.cluster.leader import LeaderBroker
from magnetar.broker.cluster.load_report import BrokerReport
from magnetar.broker.cluster.membership import Membership
from magnetar.broker.resources.bundles import NamespaceBundle
from magnetar.client.http import HttpClient
from magnetar.config.broker import BrokerConfig
from magnetar.errors import BrokerUnavailableError
from magnetar.names import TopicName
from magnetar.testing.waiting import until
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand, CommandLookupTopicResponse, ServerError
from tests.unit.admin.admin_world import admin_world
from tests.unit.broker import golden
from tests.unit.broker.cluster.brokers_world import BrokersWorld, brokers_world
from tests.unit.broker.pulsar.broker_world import Talker

pytestmark = pytest.mark.virtual_time

TOPIC = "persistent://public/default/t"
NAMESPACE = "/admin/v2/namespaces/public/default"
V2 = "/admin/v2/persistent/public/default"
CONNECT, REDIRECT = CommandLookupTopicResponse.Connect, CommandLookupTopicResponse.Redirect


async def look_up(talker: Talker, topic: str = TOPIC, *, authoritative: bool = False) -> CommandLookupTopicResponse:
    command = BaseCommand(type=BaseCommand.LOOKUP)
    command.lookupTopic.topic, command.lookupTopic.request_id = topic, talker.next_request()
    command.lookupTopic.authoritative = authoritative
    talker.send(command)
    return (await talker.answer(BaseCommand.LOOKUP_RESPONSE)).lookupTopicResponse


async def talkers(world: BrokersWorld) -> dict[str, Talker]:
    return {name: await broker.talker() for name, broker in world.brokers.items()}


async def test_a_lookup_leads_over_the_leader_to_the_chosen_broker_and_ends_there() -> None:
    async with brokers_world("leader", "b", "c") as world:
        world.members.chooses = "c:8080"
        talker = await talkers(world)
        first = await look_up(talker["b"])
        assert (first.response, first.brokerServiceUrl, first.authoritative) == (
            REDIRECT,
            world.url_of("leader"),
            False,
        )
        second = await look_up(talker["leader"], authoritative=first.authoritative)
        assert (second.response, second.brokerServiceUrl, second.authoritative) == (REDIRECT, world.url_of("c"), True)
        third = await look_up(talker["c"], authoritative=second.authoritative)
        assert (third.response, third.brokerServiceUrl) == (CONNECT, world.url_of("c"))
        for each in talker.values():
            known = await look_up(each)
            assert (known.response, known.brokerServiceUrl, known.authoritative) == (CONNECT, world.url_of("c"), True)


async def test_a_topic_is_served_by_its_owner_alone() -> None:
    async with brokers_world("a", "b") as world:
        await world.own("a", TOPIC)
        talker = await talkers(world)
        refused = await talker["b"].producer(TOPIC)
        assert refused.error.error == ServerError.ServiceNotReady
        assert (await talker["a"].producer(TOPIC)).type == BaseCommand.PRODUCER_SUCCESS


async def test_a_lookup_over_http_is_redirected_until_the_owner_is_known() -> None:
    async with brokers_world("leader", "b", "c") as world:
        world.members.chooses = "c:8080"
        path = "/lookup/v2/topic/persistent/public/default/t"
        answer = await world.admins["b"].get(f"{path}?listenerName=")
        assert answer.status == 307
        assert answer.headers["location"] == f"http://leader:8080{path}?listenerName=&authoritative=false"
        answer = await world.admins["leader"].get(f"{path}?authoritative=false")
        assert answer.headers["location"] == f"http://c:8080{path}?authoritative=true"
        answer = await world.admins["c"].get(f"{path}?authoritative=true")
        assert (answer.status, answer.json["brokerUrl"]) == (200, world.url_of("c"))
        answer = await world.admins["b"].get(path)
        assert (answer.status, answer.json["brokerUrl"], answer.json["httpUrl"]) == (
            200,
            world.url_of("c"),
            "http://c:8080",
        )


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", f"{V2}/t/stats"),
        ("PUT", f"{V2}/t"),
        ("PUT", f"{V2}/t/unload"),
        ("DELETE", f"{V2}/t"),
        ("PUT", f"{V2}/t/subscription/s"),
    ],
)
async def test_a_request_about_a_topic_of_another_broker_is_sent_there(method: str, path: str) -> None:
    async with brokers_world("a", "b") as world:
        await world.own("a", TOPIC)
        if path != f"{V2}/t":
            await (await world.brokers["a"].talker()).producer(TOPIC)
        answer = await world.admins["b"].call(method, path)
        assert (answer.status, answer.headers.get("location")) == (307, f"http://a:8080{path}?authoritative=false")


async def test_an_unloaded_bundle_goes_on_at_the_next_owner_and_clients_are_told_to_look_up() -> None:
    async with brokers_world("a", "b") as world:
        bundle = await world.own("a", TOPIC)
        talker = await talkers(world)
        await talker["a"].producer(TOPIC)
        await talker["a"].subscribe(TOPIC)
        await talker["a"].published(1, 0, b"before")
        path = f"{NAMESPACE}/{bundle.bundle}/unload"
        assert (await world.admins["b"].call("PUT", path)).headers["location"].startswith(f"http://a:8080{path}")
        await world.admins["a"].done("PUT", path)
        await talker["a"].answer(BaseCommand.CLOSE_PRODUCER)
        await talker["a"].answer(BaseCommand.CLOSE_CONSUMER)
        await world.admins["a"].done("PUT", path)  # It has no owner now.
        await world.own("b", TOPIC)
        await talker["b"].subscribe(TOPIC)
        talker["b"].flow(10)
        assert (await talker["b"].message())[1].endswith(b"before")


async def test_clients_of_an_unloaded_bundle_are_informed_when_a_lookup_succeeds() -> None:
    async with brokers_world("a", "b") as world:
        bundle = await world.own("a", TOPIC)
        talker = await talkers(world)
        await talker["a"].producer(TOPIC)
        await talker["a"].subscribe(TOPIC)
        unloading = asyncio.create_task(world.ownership("a").unload(bundle))
        closed = (await talker["a"].answer(BaseCommand.CLOSE_PRODUCER)).close_producer
        assert not closed.HasField("assignedBrokerServiceUrl")
        assert (await look_up(talker["b"], authoritative=True)).response == CONNECT
        await talker["a"].answer(BaseCommand.CLOSE_CONSUMER)
        await unloading


async def test_clients_are_informed_of_the_destination_when_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    async with brokers_world("a", "b") as world:
        _pass_requests_on(world, monkeypatch)
        bundle = await world.own("a", TOPIC)
        talker = await talkers(world)
        await talker["a"].producer(TOPIC)
        await talker["a"].subscribe(TOPIC)
        await world.admins["a"].done("PUT", f"{NAMESPACE}/{bundle.bundle}/unload?destinationBroker=b:8080")
        closed = (await talker["a"].answer(BaseCommand.CLOSE_PRODUCER)).close_producer
        assert closed.assignedBrokerServiceUrl == world.url_of("b")
        left = (await talker["a"].answer(BaseCommand.CLOSE_CONSUMER)).close_consumer
        assert left.assignedBrokerServiceUrl == world.url_of("b")
        assert set(world.ownership("b").owned()) == {bundle}
        assert (await talker["b"].producer(TOPIC)).type == BaseCommand.PRODUCER_SUCCESS


async def test_a_destination_that_does_not_answer_leaves_the_bundle_to_lookups(monkeypatch: pytest.MonkeyPatch) -> None:
    async with brokers_world("a", "b") as world:

        async def request(*_: object, **__: object) -> object:
            raise BrokerUnavailableError("no answer")

        monkeypatch.setattr(HttpClient, "request", request)
        bundle = await world.own("a", TOPIC)
        talker = await world.brokers["a"].talker()
        await talker.producer(TOPIC)
        await world.ownership("a").unload(bundle, "b:8080")
        closed = (await talker.answer(BaseCommand.CLOSE_PRODUCER)).close_producer
        assert not closed.HasField("assignedBrokerServiceUrl")
        await world.own("b", TOPIC)


async def test_a_destination_that_is_not_alive_is_refused_and_nothing_is_unloaded() -> None:
    async with brokers_world("a", "b") as world:
        bundle = await world.own("a", TOPIC)
        answer = await world.admins["a"].call("PUT", f"{NAMESPACE}/{bundle.bundle}/unload?destinationBroker=c:8080")
        assert (answer.status, "c:8080 is not alive" in answer.reason) == (405, True)
        assert set(world.ownership("a").owned()) == {bundle}


class Moves:
    """A membership in which one broker is Apache's, and another one leads."""

    def __init__(self, apache: str, leader: str) -> None:
        self._report = BrokerReport.decode("apache:8080", "/", golden.cluster()["broker new"].encode())
        self._apache = apache
        self._leader = leader
        self.made: list[tuple[NamespaceBundle, str, str]] = []

    def reports(self) -> dict[str, BrokerReport]:
        return {self._apache: self._report}

    async def leading(self) -> LeaderBroker | None:
        return LeaderBroker(self._leader, f"http://{self._leader}") if self._leader else None

    async def move(self, bundle: NamespaceBundle, source: str, destination: str) -> None:
        self.made.append((bundle, source, destination))


async def test_the_leader_moves_a_bundle_of_a_broker_of_apache_and_others_send_the_request_to_the_leader() -> None:
    async with brokers_world("a", "b", "apache") as world:
        bundle = await world.own("apache", TOPIC)
        path = f"{NAMESPACE}/{bundle.bundle}/unload"
        moves = Moves("apache:8080", "a:8080")
        for name in ("a", "b"):
            world.brokers[name].broker.service.membership = cast("Membership", moves)
        await world.admins["a"].done("PUT", f"{path}?destinationBroker=b:8080")
        assert moves.made == [(bundle, "apache:8080", "b:8080")]
        sent_on = await world.admins["b"].call("PUT", f"{path}?destinationBroker=b:8080")
        assert (sent_on.status, sent_on.headers["location"].partition("/admin")[0]) == (307, "http://a:8080")
        plain = await world.admins["a"].call("PUT", path)
        assert (plain.status, plain.headers["location"].partition("/admin")[0]) == (307, "http://apache:8080")


async def test_a_bundle_of_a_broker_of_apache_is_not_moved_while_no_broker_leads() -> None:
    async with brokers_world("a", "apache") as world:
        bundle = await world.own("apache", TOPIC)
        moves = Moves("apache:8080", "")
        world.brokers["a"].broker.service.membership = cast("Membership", moves)
        refused = await world.admins["a"].call("PUT", f"{NAMESPACE}/{bundle.bundle}/unload?destinationBroker=a:8080")
        assert (refused.status, "no leader" in refused.reason) == (503, True)
        assert not moves.made


async def test_clients_do_not_wait_for_a_topic_that_takes_long_to_close(monkeypatch: pytest.MonkeyPatch) -> None:
    async with brokers_world("a") as world:
        bundle = await world.own("a", TOPIC)
        talker = await world.brokers["a"].talker()
        await talker.producer(TOPIC)
        topic = await world.brokers["a"].topic(TOPIC)
        may_close = asyncio.Event()
        close = topic.log.aclose

        async def close_late() -> None:
            await may_close.wait()
            await close()

        monkeypatch.setattr(topic.log, "aclose", close_late)
        unloading = asyncio.create_task(world.ownership("a").unload(bundle))
        await talker.answer(BaseCommand.CLOSE_PRODUCER)
        assert not unloading.done()
        may_close.set()
        await unloading


def _pass_requests_on(world: BrokersWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    async def request(
        client: HttpClient, method: str, path: str, query: dict[str, object], body: bytes = b"", **_: object
    ) -> object:
        return await world.ask(client, method, path, query, body)

    monkeypatch.setattr(HttpClient, "request", request)


async def test_a_namespace_is_unloaded_and_cleared_on_all_its_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    async with brokers_world("a", "b") as world:
        _pass_requests_on(world, monkeypatch)
        topics = await _one_topic_per_bundle(world)
        talker = await talkers(world)
        for number, topic in enumerate(topics):
            name = "ab"[number % 2]
            await world.own(name, topic)
            await talker[name].subscribe(topic, consumer_id=number)
            await talker[name].producer(topic, number)
            await talker[name].published(number, 0, b"x")
        await world.admins["a"].done("POST", f"{NAMESPACE}/clearBacklog")
        for number, topic in enumerate(topics):
            found = await world.brokers["ab"[number % 2]].topic(topic)
            assert found.subscriptions["s"].backlog_entries == 0
        await world.admins["b"].done("PUT", f"{NAMESPACE}/unload")
        assert not world.ownership("a").owned()
        assert not world.ownership("b").owned()


async def _one_topic_per_bundle(world: BrokersWorld) -> list[str]:
    found: dict[NamespaceBundle, str] = {}
    for number in range(100):
        topic = f"persistent://public/default/t{number}"
        found.setdefault(await world.ownership("a").bundle_of(TopicName.parse(topic)), topic)
    return list(found.values())


async def test_a_bundle_is_split_and_merged_under_its_clients_and_its_halves_move_apart() -> None:
    async with brokers_world("a", "b") as world:
        whole = await world.own("a", TOPIC)
        talker = await talkers(world)
        topics = [f"persistent://public/default/s{number}" for number in range(60)]
        inside = [topic for topic in topics if TopicName.parse(topic) in whole]
        for number, topic in enumerate(inside):
            assert (await talker["a"].producer(topic, number)).type == BaseCommand.PRODUCER_SUCCESS
        await world.admins["a"].done("PUT", f"{NAMESPACE}/{whole.bundle}/split")
        halves = list(world.ownership("a").owned())
        assert len(halves) == 2
        assert [halves[0].bundle.first, halves[1].bundle.last] == [whole.bundle.first, whole.bundle.last]
        for number, _ in enumerate(inside):
            await talker["a"].published(number, 0, b"x")  # No producer was closed.
        assert len((await world.admins["b"].get(f"{NAMESPACE}/bundles")).json["boundaries"]) == 6
        merge = f"/admin/v2/magnetar/bundles/public/default/{halves[0].bundle}/merge"
        await world.admins["a"].done("PUT", merge)
        assert list(world.ownership("a").owned()) == [whole]
        why = (await world.admins["a"].get(f"/admin/v2/magnetar/bundles/public/default/{whole.bundle}")).json
        assert why["acquired"]["how"] == "merged"
        for number, _ in enumerate(inside):
            await talker["a"].published(number, 1, b"x")
        await world.admins["a"].done("PUT", f"{NAMESPACE}/{whole.bundle}/split")
        await world.admins["a"].done("PUT", f"{NAMESPACE}/{halves[1].bundle}/unload")
        for topic in inside:
            name = "b" if TopicName.parse(topic) in halves[1] else "a"
            assert await world.own(name, topic) == halves[name == "b"]
        assert (await world.admins["a"].call("PUT", f"{NAMESPACE}/{whole.bundle}/split")).status == 404


async def test_a_bundle_is_split_between_its_topics_on_request() -> None:
    async with brokers_world("a", "b") as world:
        whole = await world.own("a", TOPIC)
        path = f"{NAMESPACE}/{whole.bundle}/split?splitAlgorithmName="
        assert (await world.admins["a"].call("PUT", f"{path}guess")).status == 412
        assert (await world.admins["a"].call("PUT", f"{path}topic_count_equally_divide")).status == 412
        talker = await world.brokers["a"].talker()
        names = [TopicName.parse(f"persistent://public/default/m{number}") for number in range(60)]
        inside = [name for name in names if name in whole]
        for number, name in enumerate(inside):
            await talker.producer(str(name), number)
        await world.admins["a"].done("PUT", f"{path}topic_count_equally_divide&unload=true")
        assert not world.ownership("a").owned()
        counts: dict[str, int] = {}
        for name in inside:
            half = str(await world.ownership("a").bundle_of(name))
            counts[half] = counts.get(half, 0) + 1
        assert sorted(counts.values()) == [len(inside) // 2, (len(inside) + 1) // 2]


async def test_a_broker_that_stops_hands_its_bundles_over_and_another_serves_them() -> None:
    async with brokers_world("a", "b") as world:
        topics = await _one_topic_per_bundle(world)
        talker = await world.brokers["a"].talker()
        for number, topic in enumerate(topics):
            await world.own("a", topic)
            await talker.producer(topic, number)
            await talker.published(number, 0, b"x")
        await world.stop("a")
        assert world.members.leader == "b:8080"
        after = await world.brokers["b"].talker()
        for number, topic in enumerate(topics):
            found = await look_up(after, topic)
            assert (found.response, found.brokerServiceUrl) == (CONNECT, world.url_of("b"))
            await after.producer(topic, number)
            await after.published(number, 1, b"y")


async def test_a_broker_that_lost_its_session_and_its_bundle_closes_its_clients() -> None:
    async with brokers_world("a", "b") as world:
        await world.own("a", TOPIC)
        talker = await talkers(world)
        await talker["a"].producer(TOPIC)
        await talker["a"].published(1, 0, b"x")
        world.cluster.server.cut(world.stores["a"])
        await asyncio.sleep(world.stores["a"].session.timeout_ms / 1000 + 1)
        await world.own("b", TOPIC)
        await talker["b"].producer(TOPIC)
        await talker["b"].published(1, 1, b"y")
        world.cluster.server.mend(world.stores["a"])
        await talker["a"].answer(BaseCommand.CLOSE_PRODUCER)
        await until(lambda: not world.brokers["a"].broker.service.topics.loaded(), "it is unloaded", seconds=1.0)
        assert (await look_up(talker["a"])).brokerServiceUrl == world.url_of("b")


async def test_a_split_is_refused_where_a_broker_is_alone_and_an_unload_works_there() -> None:
    async with admin_world() as world:
        talker = await world.talker()
        await talker.producer(TOPIC)
        bundles = (await world.get(f"{NAMESPACE}/bundles")).json["boundaries"]
        for first, last in pairwise(bundles):
            await world.done("PUT", f"{NAMESPACE}/{first}_{last}/unload")
        await talker.answer(BaseCommand.CLOSE_PRODUCER)
        assert (await talker.producer(TOPIC)).type == BaseCommand.PRODUCER_SUCCESS
        answer = await world.call("PUT", f"{NAMESPACE}/{bundles[0]}_{bundles[1]}/split")
        assert (answer.status, "alone" in answer.reason) == (405, True)


async def test_partitions_on_several_brokers_are_unloaded_subscribed_and_deleted_by_one_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with brokers_world("a", "b") as world:
        _pass_requests_on(world, monkeypatch)
        await world.admins["a"].done("PUT", f"{V2}/parted/partitions", 8)
        talker = await talkers(world)
        served = {"a": 0, "b": 0}
        for number in range(8):
            topic = f"persistent://public/default/parted-partition-{number}"
            owner = (
                await world.ownership("ab"[number % 2]).owner_of(TopicName.parse(topic), is_authoritative=True)
            ).address
            name = owner.broker_id[0]
            served[name] += 1
            assert (await talker[name].producer(topic, number)).type == BaseCommand.PRODUCER_SUCCESS
        assert all(served.values()), "both brokers have some"
        await world.admins["a"].done("PUT", f"{V2}/parted/subscription/s")
        assert (await world.admins["b"].call("PUT", f"{V2}/parted/subscription/s")).status == 409
        await world.admins["b"].done("PUT", f"{V2}/parted/unload")
        for name, count in served.items():
            for _ in range(count):
                await talker[name].answer(BaseCommand.CLOSE_PRODUCER)
        await world.admins["a"].done("DELETE", f"{V2}/parted/partitions?force=true")
        assert (await world.admins["b"].get(V2)).json == []


async def test_a_namespace_whose_topics_several_brokers_serve_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    async with brokers_world("a", "b", broker=BrokerConfig(force_delete_namespace=True)) as world:
        _pass_requests_on(world, monkeypatch)
        talker = await talkers(world)
        topics = await _one_topic_per_bundle(world)
        for number, topic in enumerate(topics):
            await world.own("ab"[number % 2], topic)
            await talker["ab"[number % 2]].producer(topic, number)
        await world.admins["a"].done("DELETE", f"{NAMESPACE}?force=true")
        assert (await world.admins["b"].get(f"{NAMESPACE}/bundles")).status == 404
        for name in "ab":
            await until(lambda name=name: not world.ownership(name).owned(), "its bundles are lost")  # type: ignore[misc]


async def test_a_bundle_is_deleted_with_its_topics_and_has_no_owner_then(monkeypatch: pytest.MonkeyPatch) -> None:
    async with brokers_world("a", "b", broker=BrokerConfig(force_delete_namespace=True)) as world:
        _pass_requests_on(world, monkeypatch)
        kept, deleted, *_ = await _one_topic_per_bundle(world)
        talker = await talkers(world)
        for number, topic in enumerate((kept, deleted)):
            bundle = await world.own("b", topic)
            await talker["b"].producer(topic, number)
        path = f"{NAMESPACE}/{bundle.bundle}"
        refused = await world.admins["b"].call("DELETE", path)
        assert (refused.status, refused.reason) == (409, f"Cannot delete non empty bundle: it has {deleted}")
        await world.admins["b"].done("DELETE", f"{path}?force=true")
        assert (await world.admins["b"].get(V2)).json == [kept]
        assert await world.ownership("b").find_owner(bundle) is None
        await world.admins["b"].done("DELETE", path)


async def test_the_bundles_of_a_broker_are_those_that_it_owns() -> None:
    async with brokers_world("a", "b") as world:
        bundle = await world.own("a", TOPIC)
        for name, owned in (("a", [str(bundle)]), ("b", [])):
            path = f"/admin/v2/brokers/standalone/{name}:8080/ownedNamespaces"
            assert list((await world.admins[name].get(path)).json) == owned
