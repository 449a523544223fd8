from __future__ import annotations

import asyncio
import dataclasses

import pytest

from magnetar.broker.cluster.bundle_data import BUNDLES
from magnetar.broker.cluster.decisions import Why
from magnetar.broker.cluster.load_report import MODULAR, BundleStats
from magnetar.broker.cluster.members import BROKERS
from magnetar.broker.resources.bundles import NamespaceBundle
from magnetar.config.balance import BalanceConfig
from magnetar.errors import NotAllowedError, ServiceNotReadyError
from magnetar.metadata.store import CreateMode
from magnetar.testing.waiting import until
from tests.unit.broker import golden
from tests.unit.broker.cluster.cluster_world import address
from tests.unit.broker.cluster.load_world import BALANCE, NAMESPACE, in_time, load_world

pytestmark = pytest.mark.virtual_time

BUSY = BundleStats(1_000.0, 1_000.0, 1_000.0, 1_000.0, consumers=1, producers=1, topics=4)
POLICY = {"namespaces": ["public/.*"], "primary": ["b1"], "secondary": []}


# --- choosing ---------------------------------------------------------------------------------------------------------


async def test_many_bundles_at_once_are_spread_over_the_brokers() -> None:
    async with load_world(4, bundles=16) as world:
        await world.own_all()
        assert [broker.load for broker in world.brokers.values()] == [4, 4, 4, 4]


async def test_concurrent_lookups_of_a_bundle_are_answered_with_one_broker() -> None:
    async with load_world(3) as world:
        (bundle, *_) = await world.bundles()
        answers = await asyncio.gather(*(world.leader.manager.choose(bundle) for _ in range(20)))
        assert len(set(answers)) == 1
        assert await world.leader.manager.choose(bundle) == answers[0]


async def test_a_promise_ends_with_the_report_of_the_bundle_or_with_the_time() -> None:
    async with load_world(2) as world:
        first, second, *_ = await world.bundles()
        manager = world.leader.manager
        owner = await world.own(first)
        await until(lambda: str(first) in manager.members.brokers[owner.id].bundles, "the bundle is reported")
        await manager.lead()
        assert await manager.choose(second) != owner.id  # It counts once, as a bundle of its owner.
        await asyncio.sleep(61)
        owner.host.bundles.clear()
        await until(lambda: not manager.members.brokers[owner.id].bundles, "it is reported no more")
        assert {await manager.choose(each) for each in (first, second)} == set(world.brokers)


async def test_it_is_remembered_why_a_broker_was_chosen() -> None:
    async with load_world(2) as world:
        first, second, *_ = await world.bundles()
        manager = world.leader.manager
        assert manager.decision_on(first) is None
        chosen = await manager.choose(first)
        decision = manager.decision_on(first)
        assert decision is not None
        assert (decision.broker, decision.why, decision.text) == (chosen, Why.LOAD, "none of 2 brokers had less load")
        await asyncio.sleep(1)
        assert await manager.choose(first) == chosen
        assert manager.decision_on(first) == decision  # A promise is kept; it is not a new decision.
        assert manager.decision_on(second) is None


async def test_a_broker_that_takes_over_is_chosen_because_another_had_left() -> None:
    async with load_world(3) as world:
        first, *rest = await world.bundles()
        leader = world.leader
        owner = await world.own(first)
        while owner is leader:
            first, *rest = rest
            owner = await world.own(first)
        await until(lambda: str(first) in leader.manager.members.brokers[owner.id].bundles, "the bundle is reported")
        await world.kill(owner)
        await until(lambda: owner.id not in leader.manager.members.brokers, "the leader sees that it has left")
        await asyncio.sleep(61)  # The promise has ended, and steps of the leader have passed.
        await leader.manager.choose(first)
        decision = leader.manager.decision_on(first)
        assert decision is not None
        assert decision.why is Why.TAKEN_OVER
        assert decision.text.startswith(f"broker {owner.id}, which had reported the bundle, had left; none of 2")


async def test_a_choice_just_before_the_end_of_the_former_owner_is_seen_is_a_take_over() -> None:
    async with load_world(3) as world:
        leader = world.leader
        other = next(broker for broker in world.brokers.values() if broker is not leader)
        bundles = await world.bundles()
        for bundle in bundles:
            other.host.bundles[bundle] = 0.0
        reported = leader.manager.members.brokers
        await until(lambda: len(reported[other.id].bundles) == len(bundles), "the bundles are reported")
        chosen = {bundle: await leader.manager.choose(bundle) for bundle in bundles}
        await world.kill(other)
        await until(lambda: other.id not in reported, "the leader sees that it has left")
        for bundle, broker in chosen.items():
            decision = leader.manager.decision_on(bundle)
            assert decision is not None
            assert (decision.why is Why.TAKEN_OVER) == (broker != other.id)


async def test_a_broker_that_leaves_is_chosen_no_more_and_another_one_leads() -> None:
    async with load_world(3) as world:
        leaving = world.leader
        await leaving.manager.withdraw()
        await until(lambda: any(each.manager.is_leader for each in world.brokers.values()), "another one leads")
        assert world.leader is not leaving
        await until(lambda: leaving.id not in world.leader.manager.members.brokers, "it is gone")
        await world.own_all()
        assert leaving.load == 0
        assert await leaving.manager.leader() is None  # It has no part in the election any more.
        assert await leaving.manager.address_of(world.leader.id) == address(world.leader.name)


async def test_a_broker_that_is_drained_gets_no_bundles_until_that_is_undone() -> None:
    async with load_world(3, bundles=16) as world:
        drained = next(broker for broker in world.brokers.values() if broker is not world.leader)
        known = world.leader.manager.members.brokers
        drained.manager.drain(is_draining=True)
        await until(lambda: known[drained.id].is_draining, "the leader knows")
        await drained.manager.report()
        await world.own_all()
        assert [broker.load for broker in world.brokers.values() if broker is not drained] == [8, 8]
        await asyncio.sleep(600)  # Many rounds of the leader.
        assert drained.load == 0
        assert world.unloads == []
        drained.manager.drain(is_draining=False)
        await until(lambda: not known[drained.id].is_draining, "the leader knows")
        first, *_ = await world.bundles()
        for broker in world.brokers.values():
            broker.host.bundles.pop(first, None)
        await asyncio.sleep(61)  # The former promise has ended.
        assert await world.leader.manager.choose(first) == drained.id


async def test_brokers_that_are_all_drained_are_chosen_nevertheless() -> None:
    async with load_world(2) as world:
        known = world.leader.manager.members.brokers
        for broker in world.brokers.values():
            broker.manager.drain(is_draining=True)
        await until(lambda: all(each.is_draining for each in known.values()), "the leader knows")
        (bundle, *_) = await world.bundles()
        assert await world.leader.manager.choose(bundle) in world.brokers


async def test_the_bundles_of_a_broker_that_died_are_spread_by_the_load_that_they_had() -> None:
    async with load_world(3, bundles=9) as world:
        await world.own_all()
        world.stats = dict.fromkeys(await world.bundles(), BUSY)
        await asyncio.sleep(60)
        victim = next(broker for broker in world.brokers.values() if broker is not world.leader)
        await world.kill(victim)
        await until(lambda: victim.id not in world.leader.manager.members.brokers, "its session has ended")
        await world.own_all()
        assert sorted(broker.load for broker in world.brokers.values()) == [4, 5]


async def test_no_broker_is_chosen_where_the_isolation_policies_allow_none() -> None:
    async with load_world(1) as world:
        (bundle, *_) = await world.bundles()
        await world.resources.isolation_policies.set("standalone", "mine", POLICY)
        manager = world.leader.manager

        async def is_refused() -> bool:
            with pytest.raises(ServiceNotReadyError, match="start more brokers, or see the isolation policies"):
                await manager.choose(bundle)
            return True

        await until(is_refused, "the policy is in force")


async def test_a_namespace_with_a_policy_is_served_by_its_primary_brokers() -> None:
    async with load_world(3) as world:
        await world.resources.isolation_policies.set("standalone", "mine", POLICY)
        await world.own_all()
        assert [broker.load for broker in world.brokers.values()] == [0, 8, 0]


async def test_a_policy_that_cannot_be_followed_does_not_keep_bundles_without_an_owner() -> None:
    async with load_world(2) as world:
        await world.resources.isolation_policies.set("standalone", "bad", POLICY | {"primary": ["("]})
        await world.own_all()
        assert [broker.load for broker in world.brokers.values()] == [4, 4]


async def test_namespaces_of_a_group_are_served_by_different_brokers() -> None:
    async with load_world(2, bundles=1) as world:
        bundles = []
        for name in ("one", "two"):
            namespace = dataclasses.replace(NAMESPACE, local=name)
            await world.resources.namespaces.create(namespace, await world.resources.namespaces.policies(NAMESPACE))
            await world.resources.namespaces.set_anti_affinity_group(namespace, "pair")
            (bundle,) = (await world.resources.namespaces.bundles(namespace)).all()
            bundles.append(NamespaceBundle(namespace, bundle))
        (first, second) = bundles
        owner = await world.own(first)
        owner.host.usage = 0.0
        for other in world.brokers.values():
            other.host.usage = 0.0 if other is owner else 0.9
        assert await world.own(second) is not owner


async def test_the_own_namespace_of_a_broker_is_served_by_no_other() -> None:
    async with load_world(3) as world:
        (bundle, *_) = await world.bundles()
        for broker in list(world.brokers):
            own = NamespaceBundle(dataclasses.replace(NAMESPACE, tenant="pulsar", local=broker), bundle.bundle)
            assert await world.leader.manager.choose(own) == broker
        gone = NamespaceBundle(dataclasses.replace(NAMESPACE, tenant="pulsar", local="gone:8080"), bundle.bundle)
        with pytest.raises(ServiceNotReadyError):
            await world.leader.manager.choose(gone)


async def test_a_broker_of_apache_is_given_bundles_and_one_with_another_load_manager_is_not() -> None:
    async with load_world(1, bundles=4) as world:
        store = world.cluster.connect()
        manager = world.leader.manager
        for name, report in (("apache", "broker new"), ("other", "extensible broker")):
            value = golden.cluster()[report].replace("b1", name).encode()
            await store.create(f"{BROKERS}/{name}:8080", value, mode=CreateMode.EPHEMERAL)
        await until(lambda: len(manager.members.brokers) == 3, "both are seen")
        assert manager.members.brokers["apache:8080"].load_manager == MODULAR
        chosen = [await manager.choose(bundle) for bundle in await world.bundles()]
        assert sorted(chosen) == ["apache:8080", "apache:8080", "b0:8080", "b0:8080"]


# --- rounds -----------------------------------------------------------------------------------------------------------


async def test_loads_become_even_after_brokers_were_added_and_then_nothing_moves() -> None:
    async with load_world(1, bundles=12) as world:
        world.stats = dict.fromkeys(await world.bundles(), BUSY)
        await world.own_all()
        await world.add("b1")
        await world.add("b2")

        async def is_even() -> bool:
            await world.own_all()  # Clients look up at once what was unloaded.
            return [broker.load for broker in world.brokers.values()] == [4, 4, 4]

        await in_time(is_even, "the loads are even")
        moves = len(world.unloads)
        assert moves == 8  # No bundle moved twice.
        assert all(destination is not None for _, destination in world.unloads)
        await asyncio.sleep(1_800)
        assert len(world.unloads) == moves


async def test_a_bundle_that_moves_comes_to_its_destination() -> None:
    async with load_world(1, bundles=4) as world:
        world.stats = dict.fromkeys(await world.bundles(), BUSY)
        await world.own_all()
        other = await world.add("b1")
        await until(lambda: bool(world.unloads), "one moves", seconds=300)
        ((bundle, destination),) = world.unloads
        assert destination == other.id
        assert await world.leader.manager.choose(bundle) == other.id


async def test_a_bundle_of_a_broker_of_apache_is_unloaded_without_a_destination_and_comes_to_it_anyway() -> None:
    """Apache's broker redirects an unload that names a destination to the leader."""
    async with load_world(1, bundles=4) as world:
        value = golden.cluster()["broker new"].replace("b1", "apache").encode()
        await world.cluster.connect().create(f"{BROKERS}/apache:8080", value, mode=CreateMode.EPHEMERAL)
        manager = world.leader.manager
        await until(lambda: "apache:8080" in manager.members.brokers, "it is seen")
        (bundle, *_) = await world.bundles()
        destination = await world.add("b1")
        await until(lambda: destination.id in manager.members.brokers, "the destination is seen")
        apache = world.add_foreign("apache", bundle)
        await manager.move(bundle, apache, destination.id)
        assert world.unloads == [(bundle, None)]
        assert await manager.choose(bundle) == destination.id


async def test_a_bundle_does_not_move_to_a_broker_that_is_not_alive() -> None:
    async with load_world(1, bundles=4) as world:
        (bundle, *_) = await world.bundles()
        owner = await world.own(bundle)
        with pytest.raises(NotAllowedError, match="gone:8080 is not alive"):
            await owner.manager.move(bundle, owner.id, "gone:8080")
        assert not world.unloads


async def test_another_broker_continues_the_rounds_when_the_leader_has_died() -> None:
    async with load_world(2, bundles=12) as world:
        world.stats = dict.fromkeys(await world.bundles(), BUSY)
        await world.own_all()
        await asyncio.sleep(20)
        await world.kill(world.leader)
        await until(lambda: any(each.manager.is_leader for each in world.brokers.values()), "another one leads")
        await world.own_all()
        await world.add("b2")

        async def is_even() -> bool:
            await world.own_all()
            return [broker.load for broker in world.brokers.values()] == [6, 6]

        await in_time(is_even, "the loads are even")


async def test_a_command_that_does_not_arrive_is_tried_again_in_a_later_round() -> None:
    async with load_world(2, bundles=4) as world:
        leader = world.leader
        (other,) = [each for each in world.brokers.values() if each is not leader]
        world.stats = dict.fromkeys(await world.bundles(), BUSY)
        world.is_deaf = True
        for bundle in await world.bundles():
            other.host.bundles[bundle] = 0.0
        await asyncio.sleep(120)
        assert not world.unloads
        world.is_deaf = False
        await until(lambda: bool(world.unloads), "one moves", seconds=300)


async def test_a_broker_whose_report_is_stale_neither_gets_nor_loses_bundles_by_rounds() -> None:
    balance = dataclasses.replace(BALANCE, report_max_interval_minutes=1)
    async with load_world(2, bundles=4, balance=balance) as world:
        leader = world.leader
        (other,) = [each for each in world.brokers.values() if each is not leader]
        other.host.is_frozen = True
        await asyncio.sleep(130)
        world.stats = dict.fromkeys(await world.bundles(), BUSY)
        for bundle in await world.bundles():
            leader.host.bundles[bundle] = 0.0
        await asyncio.sleep(300)
        assert not world.unloads
        other.host.is_frozen = False
        await other.manager.report()
        await until(lambda: bool(world.unloads), "one moves", seconds=300)


async def test_a_bundle_beyond_a_limit_is_split_by_its_owner_and_not_again() -> None:
    balance = dataclasses.replace(BALANCE, bundle_topics_max=10)
    async with load_world(2, bundles=2, balance=balance) as world:
        await world.own_all()
        (first, second) = await world.bundles()
        world.stats = {first: BundleStats(topics=16), second: BundleStats(topics=8)}
        await until(lambda: bool(world.splits), "it is split", seconds=120)
        await asyncio.sleep(300)
        assert world.splits == [first]
        assert len(await world.bundles()) == 3


async def test_idle_bundles_merge_until_there_are_as_many_as_at_first() -> None:
    async with load_world(1, bundles=2) as world:
        await world.own_all()
        (broker,) = world.brokers.values()
        for bundle in await world.bundles():
            await broker.host.split(bundle)
        assert len(await world.bundles()) == 4
        await until(lambda: len(world.merges) == 2, "they are merged", seconds=3_600)
        await asyncio.sleep(600)
        assert (len(world.merges), len(await world.bundles())) == (2, 2)


@pytest.mark.parametrize("is_off", [False, True], ids=["beside Apache", "switched off"])
async def test_no_bundles_merge_beside_a_broker_of_apache_or_where_that_is_switched_off(is_off: bool) -> None:
    async with load_world(1, bundles=1, balance=dataclasses.replace(BALANCE, merging=not is_off)) as world:
        await world.own_all()
        (broker,) = world.brokers.values()
        (bundle,) = await world.bundles()
        await broker.host.split(bundle)
        if not is_off:
            value = golden.cluster()["broker new"].replace("b1", "apache").encode()
            await world.cluster.connect().create(f"{BROKERS}/apache:8080", value, mode=CreateMode.EPHEMERAL)
        await asyncio.sleep(1_800)
        assert not world.merges


async def test_nothing_is_moved_or_split_where_that_is_switched_off() -> None:
    balance = dataclasses.replace(BALANCE, shedding=False, splitting=False, bundle_topics_max=1)
    async with load_world(1, bundles=4, balance=balance) as world:
        world.stats = dict.fromkeys(await world.bundles(), BUSY)
        await world.own_all()
        await world.add("b1")
        await asyncio.sleep(300)
        assert (world.unloads, world.splits) == ([], [])


async def test_bundles_of_a_policy_move_to_its_brokers_only() -> None:
    async with load_world(3, bundles=8) as world:
        policy = POLICY | {"primary": ["b1", "b2"]}
        await world.resources.isolation_policies.set("standalone", "mine", policy)
        world.stats = dict.fromkeys(await world.bundles(), BUSY)
        for bundle in await world.bundles():
            world.brokers["b1:8080"].host.bundles[bundle] = 0.0

        async def is_even() -> bool:
            await world.own_all()
            return [broker.load for broker in world.brokers.values()] == [0, 4, 4]

        await in_time(is_even, "the loads are even")


# --- averages ---------------------------------------------------------------------------------------------------------


async def test_the_leader_stores_its_averages_and_the_next_one_continues_from_them() -> None:
    balance = dataclasses.replace(BALANCE, bundle_data_interval_minutes=1)
    async with load_world(2, bundles=1, balance=balance) as world:
        (bundle,) = await world.bundles()
        world.stats = {bundle: BUSY}
        owner = await world.own(bundle)
        store = world.cluster.connect()

        async def stored() -> bytes:
            node = await store.get(f"{BUNDLES}/{bundle}")
            return b"" if node is None else node.value

        async def is_stored() -> bool:
            return b'"numSamples":10,"msgThroughputIn":1000.0' in await stored()

        await in_time(is_stored, "the averages are stored")
        assert await store.get(f"/loadbalance/broker-time-average/{owner.id}") is not None
        await world.kill(world.leader)
        await until(lambda: any(each.manager.is_leader for each in world.brokers.values()), "another one leads")
        world.leader.host.bundles = {bundle: 0.0}
        world.stats = {bundle: BundleStats(topics=4)}

        async def continues() -> bool:
            return b'"maxSamples":1000,"numSamples":2' in await stored()

        await in_time(continues, "the next leader's averages are stored")


async def test_what_is_stored_of_a_bundle_is_deleted_when_no_broker_reports_it_any_more() -> None:
    balance = dataclasses.replace(BALANCE, bundle_data_interval_minutes=1)
    async with load_world(1, bundles=1, balance=balance) as world:
        (bundle,) = await world.bundles()
        owner = await world.own(bundle)
        store = world.cluster.connect()

        async def is_stored() -> bool:
            return await store.get(f"{BUNDLES}/{bundle}") is not None

        await in_time(is_stored, "it is stored")
        owner.host.bundles.clear()

        async def is_deleted() -> bool:
            return not await is_stored()

        await in_time(is_deleted, "it is deleted")


# --- reports ----------------------------------------------------------------------------------------------------------


async def test_a_report_is_written_when_the_load_has_changed_enough_or_the_time_is_up() -> None:
    balance = BalanceConfig(report_max_interval_minutes=2)
    async with load_world(1, bundles=1, balance=balance) as world:
        (bundle,) = await world.bundles()
        world.stats = {bundle: BUSY}
        owner = await world.own(bundle)
        store = world.cluster.connect()

        async def version() -> int:
            node = await store.get(f"{BROKERS}/{owner.id}")
            assert node is not None
            return node.version

        await asyncio.sleep(10)
        reported = await version()
        report = owner.manager.members.own
        assert report.gained == (str(bundle),)
        assert report.bundles == {str(bundle): BUSY}
        world.stats = {bundle: dataclasses.replace(BUSY, messages_in=1_050.0)}
        await asyncio.sleep(60)
        assert await version() == reported
        world.stats = {bundle: dataclasses.replace(BUSY, messages_in=2_000.0)}
        await asyncio.sleep(10)
        assert await version() == reported + 1
        assert owner.manager.members.own.gained == ()
        await asyncio.sleep(125)
        assert await version() == reported + 2


async def test_a_report_has_the_busiest_bundles_of_very_many_and_fits_into_a_node() -> None:
    async with load_world(1, bundles=4_000) as world:
        bundles = await world.bundles()
        world.stats = {bundle: BundleStats(1.0 * number) for number, bundle in enumerate(bundles)}
        broker = world.leader
        broker.host.bundles = dict.fromkeys(bundles, 0.0)
        await broker.manager.report()
        reported = broker.manager.members.own
        assert list(reported.bundles) == [str(bundle) for bundle in bundles[:1_999:-1]]
        assert len(reported.encode()) < 2**20
        await until(lambda: broker.manager.members.brokers[broker.id] == reported, "it is written")


async def test_bundles_leave_the_brokers_that_a_new_policy_does_not_allow() -> None:
    async with load_world(3, bundles=8) as world:
        await world.own_all()
        await asyncio.sleep(20)
        await world.resources.isolation_policies.set("standalone", "mine", POLICY | {"primary": ["b1", "b2"]})

        async def is_obeyed() -> bool:
            await world.own_all()
            return sorted(broker.load for broker in world.brokers.values()) == [0, 4, 4]

        await in_time(is_obeyed, "the policy is obeyed")
        assert world.brokers["b0:8080"].load == 0


async def test_a_policy_that_unloads_nothing_is_for_bundles_without_an_owner() -> None:
    async with load_world(2, bundles=4) as world:
        await world.own_all()
        policy = POLICY | {"primary": ["b1"], "unload_scope": "none"}
        await world.resources.isolation_policies.set("standalone", "mine", policy)
        await asyncio.sleep(300)
        assert not world.unloads
