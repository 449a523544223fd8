"""Each invariant of bundles says so when it is broken, and says nothing when it is not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from magnetar.broker.resources.bundles import Bundles, NamespaceBundle
from magnetar.client import Message, MessageId
from magnetar.metadata.store import Create, CreateMode, Delete
from magnetar.names import TopicName
from magnetar.sim.bundles.cluster import BundleBroker
from magnetar.sim.bundles.invariants import ALL, LOST_LIMIT_S
from magnetar.sim.bundles.options import draw
from magnetar.sim.bundles.watch import BundleWatch, Setting
from magnetar.sim.world import World

TOPIC = TopicName.parse("persistent://public/default/topic-0")
OPTIONS = {"topics": 1, "faults": (), "balances": True, "subscriptions": ("shared",), "delays": 0.2}


@pytest.fixture
def watch() -> Iterator[BundleWatch]:
    with World("invariants") as world:
        yield BundleWatch(world, draw(1, OPTIONS), ALL)


def caught(watch: BundleWatch) -> list[str]:
    found = sorted({violation.invariant for violation in watch.violations})
    watch.violations.clear()
    return found


def bundle(watch: BundleWatch) -> NamespaceBundle:
    return watch.bundle_of(TOPIC)


def begin(watch: BundleWatch, by: str, session: int) -> None:
    watch.author_session = session
    watch.on_operation(Create(f"/namespace/{bundle(watch)}", b"{}", CreateMode.EPHEMERAL), None, by)


def end(watch: BundleWatch, by: str, session: int) -> None:
    watch.author_session = session
    watch.on_operation(Delete(f"/namespace/{bundle(watch)}"), None, by)


class Broker:
    """What the invariants see of a broker."""

    def __init__(self, name: str, *, owns: bool = False, leads: bool = False, ttl_s: int = 0) -> None:
        self.name = name
        self.is_paused = False
        self.session = SimpleNamespace(state=SimpleNamespace(is_usable=True))
        self.topics = [SimpleNamespace(name=TOPIC, policies=SimpleNamespace(message_ttl_s=ttl_s))]
        topics = SimpleNamespace(loaded_persistent=lambda: self.topics)
        self.broker, self.service = self, SimpleNamespace(topics=topics)
        self.ownership = SimpleNamespace(owns=lambda _topic: owns)
        self.manager = SimpleNamespace(is_leader=leads)
        world = SimpleNamespace(process=lambda _name: self)
        self.metadata: Any = SimpleNamespace(loss_rate=0.0, slow_s=0.0, watch=SimpleNamespace(world=world))
        self.metadata.stores_of = lambda _process: [self]


def brokers(*given: Broker) -> list[BundleBroker]:
    return cast("list[BundleBroker]", list(given))


def test_an_ownership_is_ended_by_the_session_that_began_it(watch: BundleWatch) -> None:
    begin(watch, "broker-0", 1)
    end(watch, "broker-0", 1)
    begin(watch, "broker-1", 2)
    assert caught(watch) == []
    end(watch, "broker-0", 1)
    assert caught(watch) == ["T3"]


def test_a_node_of_a_former_session_is_not_adopted(watch: BundleWatch) -> None:
    begin(watch, "broker-0", 1)
    watch.tell("on_claimed", "broker-0", bundle(watch), 1)
    assert caught(watch) == []
    watch.tell("on_claimed", "broker-0", bundle(watch), 2)
    assert caught(watch) == ["T3"]


def test_the_end_of_an_ownership_spares_the_next_one(watch: BundleWatch) -> None:
    watch.tell("on_given_up", "broker-0", bundle(watch), is_served=False)
    assert caught(watch) == []
    watch.tell("on_given_up", "broker-0", bundle(watch), is_served=True)
    assert caught(watch) == ["T3"]


def wait(watch: BundleWatch, seconds: float) -> None:
    watch.world.run(asyncio.sleep(seconds))


@pytest.mark.parametrize(
    ("trouble", "expected"), [("none", ["T6"]), ("paused", []), ("unloaded", []), ("cut off", []), ("owner", [])]
)
def test_a_topic_of_another_owner_is_served_no_more_within_a_second(
    trouble: str, expected: list[str], watch: BundleWatch
) -> None:
    begin(watch, "broker-0" if trouble == "owner" else "broker-1", 2)
    broker = Broker("broker-0")
    watch.tell("on_look_around", brokers(broker))
    wait(watch, 0.6 * LOST_LIMIT_S)
    broker.is_paused = trouble == "paused"
    broker.session.state.is_usable = trouble != "cut off"
    watch.tell("on_look_around", brokers(broker))
    broker.is_paused, broker.session.state.is_usable = False, True
    if trouble == "unloaded":
        broker.topics.clear()
    wait(watch, 0.6 * LOST_LIMIT_S)
    watch.tell("on_look_around", brokers(broker))
    assert caught(watch) == expected


@pytest.mark.parametrize(
    ("value", "confirmed", "unknown", "expected"),
    [(0, None, [], []), (5, 5, [], []), (4, 5, [4], []), (4, 5, [], ["T7"]), (0, 5, [], ["T7"])],
)
def test_a_policy_that_was_set_is_in_force(
    value: int, confirmed: int | None, unknown: list[int], expected: list[str], watch: BundleWatch
) -> None:
    watch.promised.of_namespace = Setting(confirmed, dict.fromkeys(unknown))
    watch.tell("at_promises", brokers(Broker("broker-0", ttl_s=value)))
    assert caught(watch) == expected


def test_schemas_and_deleted_topics_stay_what_they_are(watch: BundleWatch) -> None:
    watch.promised.schemas = {0: "a", 1: "b"}
    watch.promised.found_schemas = {0: "a", 1: "b"}
    watch.promised.deleted = ["scratch-1"]
    watch.tell("at_promises", [])
    assert caught(watch) == []
    watch.promised.found_schemas[1] = "c"
    watch.tell("at_promises", [])
    assert caught(watch) == ["T7"]
    watch.promised.found_schemas[1] = "b"
    watch.on_operation(Create("/managed-ledgers/public/default/persistent/scratch-1", b""), None, "broker-0")
    watch.tell("at_promises", [])
    assert caught(watch) == ["T7"]


def test_a_delayed_message_is_not_early(watch: BundleWatch) -> None:
    watch.told.add_producer(str(TOPIC), "p").due_s[0] = 0.2
    progress = watch.told.add_subscription(str(TOPIC), "shared")
    early = Message(MessageId(1, 0), str(TOPIC), b"x", producer_name="p", sequence_id=0)
    watch.tell("on_received", progress, "c", early)
    assert caught(watch) == ["T8"]
    wait(watch, 0.3)
    watch.tell("on_received", progress, "c", early)
    assert caught(watch) == []


def test_a_healed_world_has_one_leader_and_one_owner_and_comes_to_rest(watch: BundleWatch) -> None:
    begin(watch, "broker-0", 1)
    wait(watch, 10.0)
    good = Broker("broker-0", owns=True, leads=True)
    watch.tell("on_settled", brokers(good, Broker("broker-1")))
    assert caught(watch) == []
    watch.tell("on_settled", brokers(good, Broker("broker-1", leads=True)))
    assert caught(watch) == ["V9"], "two leaders"
    watch.tell("on_settled", brokers(good, Broker("broker-1", owns=True)))
    assert caught(watch) == ["V9"], "two owners"
    end(watch, "broker-0", 1)
    watch.tell("on_settled", brokers(good))
    assert caught(watch) == ["V9"], "no owner"
    begin(watch, "broker-1", 2)
    watch.tell("on_settled", brokers(Broker("broker-1", owns=True, leads=True)))
    assert caught(watch) == ["V9"], "it has just moved"


def test_two_owned_bundles_do_not_overlap(watch: BundleWatch) -> None:
    begin(watch, "broker-0", 1)
    watch.divided = Bundles.equal(2)
    begin(watch, "broker-0", 1)
    wait(watch, 10.0)
    watch.tell("on_settled", brokers(Broker("broker-0", owns=True, leads=True)))
    assert caught(watch) == ["V9"]
