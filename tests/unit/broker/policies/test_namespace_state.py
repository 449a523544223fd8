"""What counts for the topics of a namespace: one object for all that have no policies of their own, always current."""

from __future__ import annotations

from magnetar.broker.names import NamespaceName, TopicName
from magnetar.broker.policies.effective import EffectivePolicies
from magnetar.broker.policies.events import PolicyChange
from magnetar.broker.policies.namespace_state import NamespaceState
from magnetar.config.root import Config

PLAIN = TopicName.parse("public/default/plain")
OTHER = TopicName.parse("public/default/other-partition-3")
OWN = TopicName.parse("public/default/own")
EVENTS = TopicName.parse("public/default/__change_events")


def state() -> NamespaceState:
    made = NamespaceState(NamespaceName("public", "default"), Config())
    made.set_document({"max_producers_per_topic": 3})
    return made


def test_topics_without_policies_of_their_own_share_one_object() -> None:
    policies = state()
    assert policies.effective(PLAIN) is policies.effective(OTHER)
    assert policies.effective(PLAIN).producers_max == 3


def test_the_brokers_own_topics_do_not_share_it() -> None:
    policies = state()
    policies.effective(PLAIN)
    assert policies.effective(EVENTS).producers_max == 0


def test_another_document_of_the_namespace_counts_at_once() -> None:
    policies = state()
    heard: list[EffectivePolicies] = []
    policies.watch(PLAIN, heard.append)
    policies.set_document({"max_producers_per_topic": 4})
    assert policies.effective(PLAIN).producers_max == 4
    assert [each.producers_max for each in heard] == [4]


def test_a_topics_own_policies_count_for_it_alone_and_until_they_are_gone() -> None:
    policies = state()
    policies.effective(OWN)
    policies.apply(PolicyChange(OWN, False, {"maxProducerPerTopic": 9}), None)
    assert (policies.effective(OWN).producers_max, policies.effective(PLAIN).producers_max) == (9, 3)
    policies.apply(PolicyChange(OWN, False, None), None)
    assert policies.effective(OWN) is policies.effective(PLAIN)
