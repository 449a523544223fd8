from __future__ import annotations

from magnetar.config.kafka import KafkaConfig
from magnetar.testing.waiting import until
from magnetar.wire.kafka.error_codes import ErrorCode
from magnetar.wire.kafka.group_tables import FIND_COORDINATOR
from magnetar.wire.kafka.tables import METADATA
from tests.unit.broker.cluster.brokers_world import BrokersWorld, brokers_world
from tests.unit.broker.kafka.kafka_world import KafkaTalker, KafkaWorld, batch_of, read
from tests.unit.broker.kafka.test_groups import SETTINGS, Client

CONFIG = KafkaConfig(group_initial_rebalance_delay_ms=0, **SETTINGS)  # type: ignore[arg-type]


class KafkaBrokers(BrokersWorld):
    make_broker = KafkaWorld


def broker(world: BrokersWorld, name: str) -> KafkaWorld:
    found = world.brokers[name]
    assert isinstance(found, KafkaWorld)
    return found


async def leader_of(talker: KafkaTalker, topic: str) -> int | None:
    """Returns the port of the partition's leader; None without one."""
    answer = await talker.request(METADATA, {"topics": [{"name": topic}]})
    ports = {each["node_id"]: each["port"] for each in answer["brokers"]}
    (partition,) = answer["topics"][0]["partitions"]
    return ports.get(partition["leader_id"])


async def test_clients_are_sent_to_the_owner_of_a_topic_and_of_a_group_and_to_the_next_one_after_it() -> None:
    async with brokers_world("a", "b", kind=KafkaBrokers, kafka=CONFIG) as world:
        world.members.chooses = "b:8080"
        a, b = broker(world, "a"), broker(world, "b")
        at_a, at_b = a.kafka(), b.kafka()
        assert await leader_of(at_a, "t") == b.kafka_front_end.port
        assert await at_b.produced("t", b"x") == 0
        assert (await at_a.produce("t", batch_of(b"x")))["error_code"] == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await at_a.fetch("t", 0))["error_code"] == ErrorCode.NOT_LEADER_OR_FOLLOWER

        found = await at_a.request(FIND_COORDINATOR, {"key": "g"}, 3)
        assert (found["error_code"], found["port"]) == (0, b.kafka_front_end.port)
        member = Client(b)
        await member.join_alone()
        assert await member.commit(7) == 0
        assert await Client(a).commit(8) == ErrorCode.NOT_COORDINATOR

        await world.stop("b")
        world.members.chooses = "a:8080"

        async def leads() -> bool:
            return await leader_of(at_a, "t") == a.kafka_front_end.port

        await until(leads, "the other broker owns the topic")
        assert read((await at_a.fetch("t", 0))["records"]) == [(0, b"x")]
        assert await at_a.produced("t", b"y") == 1
        back = Client(a)
        back.member_id, back.generation = member.member_id, member.generation
        assert await back.heartbeat() == 0
        assert await back.committed() == (7, "m")
