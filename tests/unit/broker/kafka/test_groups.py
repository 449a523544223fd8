from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from magnetar.broker.kafka.groups import coordinator as coordinator_module
from magnetar.broker.kafka.groups.coordinator import Coordinator
from magnetar.broker.kafka.groups.coordinators import java_hash
from magnetar.broker.kafka.groups.group import Group
from magnetar.config.kafka import KafkaConfig
from magnetar.names import TopicName
from magnetar.testing.waiting import until
from magnetar.wire.kafka.codec import Value
from magnetar.wire.kafka.error_codes import ErrorCode
from magnetar.wire.kafka.group_tables import (
    FIND_COORDINATOR,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    SYNC_GROUP,
)
from tests.unit.broker.kafka.kafka_world import KafkaTalker, KafkaWorld, kafka_world
from tests.unit.broker.pulsar.broker_world import TIMEOUT_S

LONG_MS = 60_000
SETTINGS = {"enabled": True, "port": 0, "offsets_partitions": 1, "group_session_timeout_ms_min": 1}
OFFSETS = TopicName.parse("public/__kafka/__consumer_offsets-partition-0")


@pytest.fixture
async def world() -> AsyncIterator[KafkaWorld]:
    config = KafkaConfig(group_initial_rebalance_delay_ms=0, **SETTINGS)  # type: ignore[arg-type]
    async with kafka_world(kafka=config) as made:
        yield made


class Client:
    """A member of a group, which does what the test says."""

    def __init__(self, world: KafkaWorld, group: str = "g", *, instance: str | None = None, **join: Any) -> None:
        self.talker: KafkaTalker = world.kafka()
        self.group = group
        self.instance = instance
        self.member_id = ""
        self.generation = -1
        self._join = join

    def _named(self, **fields: Any) -> dict[str, Any]:
        return {
            "group_id": self.group,
            "member_id": self.member_id,
            "group_instance_id": self.instance,
            "generation_id": self.generation,
            **fields,
        }

    async def ask_to_join(self, version: int | None = None) -> Value:
        request = self._named(
            session_timeout_ms=self._join.get("session_ms", LONG_MS),
            rebalance_timeout_ms=self._join.get("rebalance_ms", LONG_MS),
            protocol_type="consumer",
            protocols=[
                {"name": name, "metadata": self._join.get("subscription", b"topics")}
                for name in self._join.get("protocols", ["range", "roundrobin"])
            ],
        )
        return await self.talker.request(JOIN_GROUP, request, version)

    async def join(self) -> Value:
        answer = await self.ask_to_join()
        if answer["error_code"] == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer["member_id"]
            answer = await self.ask_to_join()
        assert answer["error_code"] == 0
        self.member_id, self.generation = answer["member_id"], answer["generation_id"]
        return answer

    async def sync(self, **assignments: bytes) -> Value:
        """`assignments`: None for a member that does not lead."""
        given = [{"member_id": member, "assignment": each} for member, each in assignments.items()]
        return await self.talker.request(SYNC_GROUP, self._named(assignments=given))

    async def join_alone(self) -> None:
        await self.join()
        assert (await self.sync(**{self.member_id: b"all"}))["assignment"] == b"all"

    async def heartbeat(self) -> int:
        return int((await self.talker.request(HEARTBEAT, self._named()))["error_code"])

    async def leave(self) -> Value:
        leaving = {"member_id": self.member_id, "group_instance_id": self.instance}
        return await self.talker.request(LEAVE_GROUP, self._named(members=[leaving]))

    async def commit(self, offset: int, *, topic: str = "t", metadata: str | None = "m") -> int:
        partition = {"partition_index": 0, "committed_offset": offset, "committed_metadata": metadata}
        request = self._named(
            generation_id_or_member_epoch=self.generation, topics=[{"name": topic, "partitions": [partition]}]
        )
        answer = await self.talker.request(OFFSET_COMMIT, request)
        return int(answer["topics"][0]["partitions"][0]["error_code"])

    async def committed(self, topic: str = "t") -> tuple[int, str]:
        asked = {"group_id": self.group, "topics": [{"name": topic, "partition_indexes": [0]}]}
        answer = await self.talker.request(OFFSET_FETCH, {"groups": [asked]})
        (found,) = answer["groups"][0]["topics"][0]["partitions"]
        assert (answer["groups"][0]["error_code"], found["error_code"]) == (0, 0)
        return found["committed_offset"], found["metadata"]


async def rebalanced(*clients: Client) -> dict[str, bytes]:
    """Lets all members join again; returns what the leader got."""
    answers = await asyncio.gather(*(client.join() for client in clients))
    leader = answers[0]["leader"]
    members = [answer["members"] for answer in answers if answer["member_id"] == leader]
    return {each["member_id"]: each["metadata"] for each in members[0]}


# --- members ----------------------------------------------------------------------------------------------------------


async def test_a_member_gets_an_id_first_and_then_its_generation_and_assignment(world: KafkaWorld) -> None:
    client = Client(world)
    refused = await client.ask_to_join()
    assert (refused["error_code"], refused["member_id"][:5]) == (ErrorCode.MEMBER_ID_REQUIRED, "test-")
    client.member_id = refused["member_id"]
    answer = await client.join()
    assert (answer["generation_id"], answer["protocol_name"], answer["leader"]) == (1, "range", client.member_id)
    assert [each["metadata"] for each in answer["members"]] == [b"topics"]
    synced = await client.sync(**{client.member_id: b"mine"})
    assert (synced["error_code"], synced["assignment"]) == (0, b"mine")
    assert await client.heartbeat() == 0


async def test_an_old_client_joins_without_an_id(world: KafkaWorld) -> None:
    answer = await Client(world).ask_to_join(version=2)
    assert (answer["error_code"], answer["generation_id"]) == (0, 1)


async def test_a_new_member_makes_all_join_again_and_the_leader_assigns(world: KafkaWorld) -> None:
    first, second = Client(world, subscription=b"one"), Client(world, subscription=b"two")
    await first.join_alone()
    joining = asyncio.ensure_future(second.join())
    await until(lambda: is_rebalancing(first), "the group rebalances")
    assert await first.commit(1) == 0
    answer = await first.join()
    await joining
    assert {each["metadata"] for each in answer["members"]} == {b"one", b"two"}
    assert (first.generation, second.generation) == (2, 2)
    waiting = asyncio.ensure_future(second.sync())
    await first.sync(**{first.member_id: b"a", second.member_id: b"b"})
    assert (await waiting)["assignment"] == b"b"
    assert (await second.heartbeat(), await first.heartbeat()) == (0, 0)


async def is_rebalancing(client: Client) -> bool:
    return await client.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS


async def test_members_of_an_empty_group_that_come_together_get_one_generation() -> None:
    config = KafkaConfig(group_initial_rebalance_delay_ms=300, **SETTINGS)  # type: ignore[arg-type]
    async with kafka_world(kafka=config) as world:
        clients = [Client(world) for _ in range(3)]
        assert len(await rebalanced(*clients)) == 3
        assert {client.generation for client in clients} == {1}


async def test_a_member_that_leaves_or_is_silent_makes_the_others_join_again(world: KafkaWorld) -> None:
    stays, leaves, silent = Client(world), Client(world), Client(world, session_ms=200)
    await stays.join_alone()
    await rebalanced_with(stays, leaves)
    assert (await leaves.leave())["members"][0]["error_code"] == 0
    await until(lambda: is_rebalancing(stays), "the group rebalances")
    assert await rebalanced(stays) == {stays.member_id: b"topics"}
    await rebalanced_with(stays, silent)
    await until(lambda: is_rebalancing(stays), "the silent member was removed")
    assert await silent.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


async def rebalanced_with(stays: Client, joins: Client) -> None:
    joining = asyncio.ensure_future(joins.join())
    await until(lambda: is_rebalancing(stays), "the group rebalances")
    await asyncio.gather(stays.join(), joining)
    waiting = asyncio.ensure_future(joins.sync())
    assert (await stays.sync(**{stays.member_id: b"a", joins.member_id: b"b"}))["error_code"] == 0
    await waiting


async def test_a_rebalance_does_not_wait_forever_for_a_member(world: KafkaWorld) -> None:
    slow, joins = Client(world, rebalance_ms=200), Client(world, rebalance_ms=200)
    await slow.join_alone()
    answer = await joins.join()
    assert [each["member_id"] for each in answer["members"]] == [joins.member_id]
    assert await slow.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_member_whose_connection_ends_while_it_joins_is_removed(world: KafkaWorld) -> None:
    stays, gone = Client(world), Client(world)
    await stays.join_alone()
    joining = asyncio.ensure_future(gone.join())
    await until(lambda: is_rebalancing(stays), "the group rebalances")
    gone.talker.transport.close()
    await until(lambda: world.kafka_front_end.connections == 1, "the broker notices the end of the connection")
    answer = await stays.join()
    assert [each["member_id"] for each in answer["members"]] == [stays.member_id]
    with pytest.raises(AssertionError, match="closed"):
        await joining


async def test_members_without_a_common_protocol_and_wrong_session_timeouts_are_refused(world: KafkaWorld) -> None:
    await Client(world).join_alone()
    other = Client(world, protocols=["sticky"])
    assert (await other.ask_to_join())["error_code"] == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    long = Client(world, session_ms=10**8)
    assert (await long.ask_to_join())["error_code"] == ErrorCode.INVALID_SESSION_TIMEOUT
    nameless = Client(world, group="")
    assert (await nameless.ask_to_join())["error_code"] == ErrorCode.INVALID_GROUP_ID


async def test_a_static_member_comes_back_without_a_rebalance_and_its_former_self_is_fenced(world: KafkaWorld) -> None:
    leader, static = Client(world), Client(world, instance="i")
    await leader.join_alone()
    await rebalanced_with(leader, static)
    again = Client(world, instance="i")
    answer = await again.join()
    assert (answer["generation_id"], answer["members"]) == (leader.generation, [])
    assert (await again.sync())["assignment"] == b"b"
    assert await leader.heartbeat() == 0
    assert await static.heartbeat() == ErrorCode.FENCED_INSTANCE_ID
    assert await static.commit(1) == ErrorCode.FENCED_INSTANCE_ID


# --- offsets ----------------------------------------------------------------------------------------------------------


async def test_committed_offsets_are_fetched_with_their_metadata_under_the_topics_one_name(world: KafkaWorld) -> None:
    client = Client(world)
    await client.join_alone()
    assert await client.committed() == (-1, "")
    assert await client.commit(5) == 0
    assert await client.commit(7, topic="public/default/t", metadata=None) == 0
    assert await client.committed() == (7, "")
    answer = await client.talker.request(OFFSET_FETCH, {"groups": [{"group_id": "g", "topics": None}]})
    assert [topic["name"] for topic in answer["groups"][0]["topics"]] == ["t"]
    old = {"group_id": "g", "topics": [{"name": "t", "partition_indexes": [0, 1]}]}
    answer = await client.talker.request(OFFSET_FETCH, old, 5)
    assert [each["committed_offset"] for each in answer["topics"][0]["partitions"]] == [7, -1]


async def test_commits_that_are_late_foreign_or_too_long_are_refused(world: KafkaWorld) -> None:
    client, stranger = Client(world), Client(world)
    assert await stranger.commit(3) == 0
    await client.join_alone()
    assert await stranger.commit(4) == ErrorCode.UNKNOWN_MEMBER_ID
    client.generation -= 1
    assert await client.commit(5) == ErrorCode.ILLEGAL_GENERATION
    client.generation += 1
    assert await client.commit(6, metadata="x" * 4_097) == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert await client.commit(6, topic="__change_events") == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert await client.committed() == (3, "m")
    nobody = Client(world, group="other")
    nobody.generation, nobody.member_id = 4, "x"
    assert await nobody.commit(1) == ErrorCode.ILLEGAL_GENERATION


async def test_the_next_coordinator_knows_members_generation_and_offsets(world: KafkaWorld) -> None:
    client, static = Client(world), Client(world, instance="i")
    await client.join_alone()
    await rebalanced_with(client, static)
    assert await client.commit(5) == 0
    await world.broker.service.topics.unload(OFFSETS)
    assert (await client.heartbeat(), await static.heartbeat()) == (0, 0)
    assert await client.commit(6) == 0
    assert (await static.sync())["assignment"] == b"b"
    await world.restart()
    back = Client(world)
    back.member_id, back.generation = client.member_id, client.generation
    assert await back.heartbeat() == 0
    assert await back.committed() == (6, "m")


async def test_members_that_wait_are_told_when_the_coordinator_ends(world: KafkaWorld) -> None:
    leader, follower = Client(world), Client(world)
    await leader.join_alone()
    joining = asyncio.ensure_future(follower.join())
    await until(lambda: is_rebalancing(leader), "the group rebalances")
    await asyncio.gather(leader.join(), joining)
    waiting = asyncio.ensure_future(follower.sync())
    await until(lambda: is_waiting(world, follower), "the follower waits for the leader")
    await world.broker.service.topics.unload(OFFSETS)
    assert (await waiting)["error_code"] == ErrorCode.NOT_COORDINATOR


def is_waiting(world: KafkaWorld, client: Client) -> bool:
    shared = world.kafka_front_end._shared
    assert shared is not None
    (coordinator,) = shared.coordinators._serving.values()
    return coordinator.groups["g"].members[client.member_id].syncing is not None


async def test_a_request_is_answered_if_the_coordinator_ends_while_it_loads(
    world: KafkaWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    loading = asyncio.Event()

    async def load(self: Coordinator) -> None:
        loading.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Coordinator, "_load", load)
    client = Client(world)
    asking = asyncio.ensure_future(client.heartbeat())
    async with asyncio.timeout(TIMEOUT_S):
        await loading.wait()
    shared = world.kafka_front_end._shared
    assert shared is not None
    (coordinator,) = shared.coordinators._serving.values()
    coordinator.close()
    assert await asking == ErrorCode.NOT_COORDINATOR


async def test_a_coordinator_that_ended_as_it_was_loaded_does_not_say_that_nothing_was_committed(
    world: KafkaWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(world)
    assert await client.commit(1) == 0
    await world.broker.service.topics.unload(OFFSETS)
    original = Coordinator._load

    async def load(self: Coordinator) -> None:
        await original(self)
        self.partition.close()

    monkeypatch.setattr(Coordinator, "_load", load)
    asked = {"group_id": "g", "topics": [{"name": "t", "partition_indexes": [0]}]}
    answer = await client.talker.request(OFFSET_FETCH, {"groups": [asked]})
    assert answer["groups"][0]["error_code"] == ErrorCode.NOT_COORDINATOR


async def test_a_commit_that_cannot_be_stored_sends_the_client_to_another_coordinator(world: KafkaWorld) -> None:
    client = Client(world)
    await client.join_alone()
    topic = await world.topic(str(OFFSETS))
    topic.publisher.refuse("the topic is being closed")
    assert await client.commit(1) == ErrorCode.NOT_COORDINATOR
    assert await client.committed() == (-1, "")
    await world.broker.service.topics.unload(OFFSETS)
    await (await world.topic(str(OFFSETS))).terminate()
    assert await client.commit(1) == ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_what_counts_is_written_again_from_time_to_time_and_read_from_there(
    world: KafkaWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator_module, "_SNAPSHOT_RECORDS", 20)
    client = Client(world)
    await client.join_alone()
    for offset in range(50):
        assert await client.commit(offset) == 0
    topic = await world.topic(str(OFFSETS))
    await until(lambda: "kafka.snapshot" in topic.log.properties, "a snapshot was noted")
    await world.broker.service.topics.unload(OFFSETS)
    assert await client.committed() == (49, "m")
    assert await client.heartbeat() == 0
    shared = world.kafka_front_end._shared
    assert shared is not None
    assert max(each._records for each in shared.coordinators._serving.values()) < 50


async def test_a_request_is_answered_if_its_member_asks_again_on_another_connection(world: KafkaWorld) -> None:
    leader, follower = Client(world), Client(world)
    await leader.join_alone()
    joining = asyncio.ensure_future(follower.join())
    await until(lambda: is_rebalancing(leader), "the group rebalances")
    again = Client(world)
    again.member_id = next(each for each in (await group_of(world)).members if each != leader.member_id)
    asking = asyncio.ensure_future(again.join())
    with pytest.raises(AssertionError):
        await joining
    await asyncio.gather(leader.join(), asking)
    follower.member_id, follower.generation = again.member_id, again.generation
    waiting = asyncio.ensure_future(follower.sync())
    await until(lambda: is_waiting(world, follower), "the follower waits for the leader")
    repeated = asyncio.ensure_future(again.sync())
    assert (await waiting)["error_code"] == ErrorCode.REBALANCE_IN_PROGRESS
    await leader.sync(**{again.member_id: b"part"})
    assert (await repeated)["assignment"] == b"part"


async def group_of(world: KafkaWorld) -> Group:
    return (await coordinator_of(world)).groups["g"]


async def test_a_group_between_two_generations_joins_again_after_a_snapshot(world: KafkaWorld) -> None:
    client = Client(world)
    await client.join_alone()
    await client.commit(1)
    client._join["subscription"] = b"other"
    await client.join()
    await (await coordinator_of(world))._snapshot()
    await world.broker.service.topics.unload(OFFSETS)
    answer = await client.sync(**{client.member_id: b"new"})
    assert answer["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID, "not its assignment of the generation before"
    assert await client.committed() == (1, "m")


async def test_a_snapshot_of_many_large_groups_fits_into_entries(world: KafkaWorld) -> None:
    names = [f"g{number}" for number in range(30)]
    for name in names:
        client = Client(world, name, subscription=bytes(200_000), protocols=["range"])
        await client.join_alone()
    await (await coordinator_of(world))._snapshot()
    await world.broker.service.topics.unload(OFFSETS)
    assert list((await coordinator_of(world)).groups) == names


async def test_groups_that_were_only_tried_do_not_use_up_the_limit(
    world: KafkaWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator_module, "GROUPS_MAX", 3)
    for number in range(5):
        tried = Client(world, f"tried{number}", protocols=[])
        assert (await tried.ask_to_join())["error_code"] == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    client = Client(world)
    await client.join_alone()
    assert await client.commit(1) == 0


@pytest.mark.parametrize(
    ("group", "join", "code"),
    [
        ("g", {"subscription": bytes(300_000)}, ErrorCode.INVALID_REQUEST),
        ("g", {"protocols": ["p" * 40_000]}, ErrorCode.INVALID_REQUEST),
        ("g" * 40_000, {}, ErrorCode.INVALID_GROUP_ID),
    ],
)
async def test_a_member_that_would_take_much_memory_is_refused(
    world: KafkaWorld, group: str, join: dict[str, Any], code: int
) -> None:
    assert (await Client(world, group, **join).ask_to_join())["error_code"] == code


async def test_a_commit_that_fits_into_no_entry_is_refused_for_good(world: KafkaWorld) -> None:
    partitions = [
        {"partition_index": number, "committed_offset": 1, "committed_metadata": "m" * 4_096} for number in range(1_500)
    ]
    request = {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "topics": [{"name": "t", "partitions": partitions}],
    }
    answer = await Client(world).talker.request(OFFSET_COMMIT, request)
    assert answer["topics"][0]["partitions"][0]["error_code"] == ErrorCode.INVALID_COMMIT_OFFSET_SIZE


async def coordinator_of(world: KafkaWorld, group: str = "g") -> Coordinator:
    shared = world.kafka_front_end._shared
    assert shared is not None
    return await shared.coordinators.of(group)


async def test_offsets_of_a_group_without_members_expire_after_their_retention(
    world: KafkaWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    entropy = world.broker.service.entropy
    now_ms = entropy.wall_ms()
    monkeypatch.setattr(type(entropy), "wall_ms", lambda _: now_ms)
    week_ms = world.config.kafka.offsets_retention_minutes * 60_000
    client = Client(world)
    await client.join_alone()
    await client.commit(1)

    now_ms += 2 * week_ms
    await (await coordinator_of(world)).expire()
    assert await client.committed() == (1, "m"), "the group has a member"
    await client.leave()
    await until(lambda: is_empty(world), "the group is empty")
    client.member_id, client.generation = "", -1
    now_ms += week_ms // 2
    await client.commit(5, topic="later")
    await world.broker.service.topics.unload(OFFSETS)

    now_ms += week_ms // 2 - 1
    await (await coordinator_of(world)).expire()
    assert await client.committed() == (1, "m")
    now_ms += 1
    await (await coordinator_of(world)).expire()
    assert (await client.committed(), await client.committed("later")) == ((-1, ""), (5, "m"))
    now_ms += week_ms
    await (await coordinator_of(world)).expire()
    await world.broker.service.topics.unload(OFFSETS)
    assert not (await coordinator_of(world)).groups


async def is_empty(world: KafkaWorld) -> bool:
    return (await coordinator_of(world)).groups["g"].empty_since_ms is not None


async def test_a_commit_during_the_deletion_of_its_group_stays(world: KafkaWorld) -> None:
    client = Client(world)
    await client.commit(1)
    coordinator = await coordinator_of(world)
    deleting = asyncio.ensure_future(coordinator.delete(coordinator.groups["g"]))
    await asyncio.sleep(0)
    assert await client.commit(2) == 0
    await deleting
    assert await client.committed() == (2, "m")
    await world.broker.service.topics.unload(OFFSETS)
    assert await client.committed() == (2, "m")


async def test_a_coordinator_is_found_for_groups_and_not_for_transactions(world: KafkaWorld) -> None:
    talker = world.kafka()
    for version in range(4):
        answer = await talker.request(FIND_COORDINATOR, {"key": "g"}, version)
        assert (answer["error_code"], answer["node_id"], answer["host"]) == (0, 0, "127.0.0.1")
    many = {"coordinator_keys": ["g", "h"], "key_type": 0}
    answer = await talker.request(FIND_COORDINATOR, many)
    assert [(each["key"], each["error_code"]) for each in answer["coordinators"]] == [("g", 0), ("h", 0)]
    answer = await talker.request(FIND_COORDINATOR, many | {"key_type": 1})
    refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert [each["error_code"] for each in answer["coordinators"]] == [refused, refused]


def test_groups_are_distributed_by_javas_hash() -> None:
    found = [java_hash(text) for text in ("", "a", "hello", "polygenelubricants")]
    assert found == [0, 97, 99_162_322, -(2**31)]
