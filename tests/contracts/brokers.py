"""Brokers that register and elect a leader, on any metadata store.

A subclass provides the fixture `harness`.
"""

from __future__ import annotations

import asyncio
import dataclasses

from magnetar.broker.cluster.leader import Leadership
from magnetar.broker.cluster.load_report import BrokerReport
from magnetar.broker.cluster.members import Members
from magnetar.broker.ownership import BrokerAddress
from magnetar.metadata.store import MetadataStore
from magnetar.runtime.system import SystemEntropy
from magnetar.testing.waiting import until
from tests.contracts.metadata_harness import CONTRACT_CONFIG, StoreHarness

TIMEOUT_S = CONTRACT_CONFIG.operation_timeout_ms / 1000


class _Broker:
    def __init__(self, name: str, store: MetadataStore) -> None:
        urls, listeners = {"pulsar": f"pulsar://{name}:6650"}, {"pulsar": dict[str, str]()}
        address = BrokerAddress(f"{name}:8080", f"http://{name}:8080", urls, listeners)
        self.store = store
        self.id = address.broker_id
        random = SystemEntropy().random
        self.members = Members(store, BrokerReport(address=address), random, timeout_s=TIMEOUT_S)
        self.leadership = Leadership(store, address, random, timeout_s=TIMEOUT_S)

    async def start(self) -> None:
        await self.members.start()
        await self.leadership.start()
        await self.leadership.leader()

    async def aclose(self) -> None:
        await self.leadership.aclose()
        await self.members.aclose()


class BrokersContract:
    async def test_brokers_find_each_other_and_agree_on_a_leader(self, harness: StoreHarness) -> None:
        one, two = [_Broker(name, await harness.connect()) for name in ("a", "b")]
        await one.start()
        await two.start()
        await until(lambda: sorted(one.members.brokers) == sorted(two.members.brokers) == [one.id, two.id], "both seen")
        await until(lambda: one.leadership.is_leader != two.leadership.is_leader, "one leads")
        assert one.leadership.known == two.leadership.known
        leader, other = (one, two) if one.leadership.is_leader else (two, one)
        await leader.aclose()
        await until(lambda: other.leadership.is_leader and list(other.members.brokers) == [other.id], "the other leads")
        await other.aclose()
        await asyncio.gather(*(broker.store.aclose() for broker in (one, two)))

    async def test_a_broker_whose_session_has_expired_registers_again(self, harness: StoreHarness) -> None:
        one, two = [_Broker(name, await harness.connect()) for name in ("a", "b")]
        await one.start()
        await two.start()
        report = dataclasses.replace(one.members.own, updated_ms=5)
        one.members.publish(report)
        await harness.expire(one.store)
        await until(lambda: two.members.brokers.get(one.id) == report, "it is back with its last report")
        await until(lambda: one.leadership.is_leader != two.leadership.is_leader, "one leads")
        for broker in (one, two):
            await broker.aclose()
            await broker.store.aclose()

    async def test_a_broker_that_loses_its_connection_stays_registered(self, harness: StoreHarness) -> None:
        one = _Broker("a", await harness.connect())
        await one.start()
        await until(lambda: one.leadership.is_leader, "it leads")
        await harness.interrupt(one.store)
        assert list(one.members.brokers) == [one.id]
        await harness.restore(one.store)
        report = dataclasses.replace(one.members.own, updated_ms=5)
        one.members.publish(report)
        await until(lambda: one.members.brokers.get(one.id) == report, "it reports again")
        await until(lambda: one.leadership.is_leader, "it leads")
        await one.aclose()
        await one.store.aclose()
