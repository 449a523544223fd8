"""What counts for the topics of a namespace: one object for all that have no policies of their own, always current."""

from __future__ import annotations

import asyncio

from magnetar.broker.policies.events import PolicyChange
from magnetar.broker.policies.follower import NamespaceState
from magnetar.broker.policies.registry import EffectivePolicies
from magnetar.config.root import Config
from magnetar.names import NamespaceName, TopicName
from magnetar.runtime.slices import Slices

PLAIN = TopicName.parse("public/default/plain")
OTHER = TopicName.parse("public/default/other-partition-3")
OWN = TopicName.parse("public/default/own")
EVENTS = TopicName.parse("public/default/__change_events")


async def state() -> NamespaceState:
    made = NamespaceState(NamespaceName("public", "default"), Config(), Slices())
    await made.set_document({"max_producers_per_topic": 3})
    return made


async def test_topics_without_policies_of_their_own_share_one_object() -> None:
    policies = await state()
    assert policies.effective(PLAIN) is policies.effective(OTHER)
    assert policies.effective(PLAIN).producers_max == 3


async def test_the_brokers_own_topics_do_not_share_it() -> None:
    policies = await state()
    policies.effective(PLAIN)
    assert policies.effective(EVENTS).producers_max == 0


async def test_another_document_of_the_namespace_counts_at_once() -> None:
    policies = await state()
    heard: list[EffectivePolicies] = []
    policies.watch(PLAIN, heard.append)
    await policies.set_document({"max_producers_per_topic": 4})
    assert policies.effective(PLAIN).producers_max == 4
    assert [each.producers_max for each in heard] == [4]


async def test_a_topics_own_policies_count_for_it_alone_and_until_they_are_gone() -> None:
    policies = await state()
    policies.effective(OWN)
    await policies.apply(PolicyChange(OWN, False, {"maxProducerPerTopic": 9}), None)
    assert (policies.effective(OWN).producers_max, policies.effective(PLAIN).producers_max) == (9, 3)
    await policies.apply(PolicyChange(OWN, False, None), None)
    assert policies.effective(OWN) is policies.effective(PLAIN)


async def test_a_change_is_told_in_slices_and_in_force_when_it_returns() -> None:
    clock = iter(range(10_000))
    policies = NamespaceState(NamespaceName("public", "default"), Config(), Slices(lambda: next(clock)))
    await policies.set_document({"max_producers_per_topic": 3})
    heard: dict[str, int] = {}
    unwatch = {}
    for number in range(10):
        topic = TopicName.parse(f"public/default/t-{number}")
        unwatch[number] = policies.watch(topic, lambda found, at=str(number): heard.update({at: found.producers_max}))  # type: ignore[misc]
    telling = asyncio.ensure_future(policies.set_document({"max_producers_per_topic": 4}))
    await asyncio.sleep(0)
    assert 0 < len(heard) < 10
    unwatch[9]()  # It is unloaded meanwhile.
    await policies.set_document({"max_producers_per_topic": 5})
    assert heard == {str(number): 5 for number in range(9)}
    await telling
    assert heard == {str(number): 5 for number in range(9)}
    assert policies.is_watched
    for end in unwatch.values():
        end()
    assert not policies.is_watched
