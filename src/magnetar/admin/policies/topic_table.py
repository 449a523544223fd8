"""The policies of single topics: path, field of the topic's document, what may be set, what is in force."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from magnetar.admin.policies import kinds
from magnetar.admin.policies.kinds import Parse
from magnetar.broker.policies.effective import EffectivePolicies
from magnetar.broker.policies.values import DispatchRate, Persistence, PublishRate, SubscribeRate
from magnetar.config.root import Config

Applied = Callable[[EffectivePolicies, Config], Any]
"""The value in force, wherever it comes from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPolicy:
    path: str
    what: str
    field: str
    parse: Parse
    body: str
    applied: Applied | None = None
    method: str = "POST"
    unset: Any = None
    can_remove: bool = True


def _count(path: str, what: str, field: str, applied: Applied | None) -> TopicPolicy:
    return TopicPolicy(path=path, what=what, field=field, parse=kinds.count, body="a count", applied=applied)


def _rate(path: str, what: str, applied: Applied) -> TopicPolicy:
    return TopicPolicy(
        path=path, what=what, field=path, parse=kinds.dispatch_rate, body="DispatchRate", applied=applied
    )


def dispatch_json(rate: DispatchRate | None) -> dict[str, Any]:
    return (rate or DispatchRate(0, 0)).to_json()


def _persistence(policies: EffectivePolicies, config: Config) -> dict[str, Any]:
    topic = config.topic
    found = policies.persistence or Persistence(topic.ensemble_size, topic.write_quorum, topic.ack_quorum, 1.0)
    return found.to_json()


TOPIC_POLICIES = [
    TopicPolicy(
        path="messageTTL",
        what="the time to live of messages, in seconds",
        field="messageTTLInSeconds",
        parse=kinds.count_in_query("messageTTL"),
        body="",
        applied=lambda found, _: found.message_ttl_s,
    ),
    TopicPolicy(
        path="subscriptionExpirationTime",
        what="after how many minutes unused subscriptions are deleted",
        field="subscriptionExpirationTimeInMinutes",
        parse=kinds.count_in_query("subscriptionExpirationTime"),
        body="",
        applied=lambda found, _: found.subscription_expiry_minutes,
    ),
    TopicPolicy(
        path="deduplicationEnabled",
        what="whether duplicates are dropped",
        field="deduplicationEnabled",
        parse=kinds.switch,
        body="true or false",
        applied=lambda found, _: found.deduplication,
    ),
    _count(
        "deduplicationSnapshotInterval",
        "the seconds between snapshots of deduplication",
        "deduplicationSnapshotIntervalSeconds",
        None,
    ),
    TopicPolicy(
        path="retention",
        what="how long acknowledged messages are kept",
        field="retentionPolicies",
        parse=kinds.retention,
        body="RetentionPolicies",
        applied=lambda found, _: found.retention.to_json(),
    ),
    TopicPolicy(
        path="persistence",
        what="how ledgers are replicated",
        field="persistence",
        parse=kinds.persistence,
        body="PersistencePolicies",
        applied=_persistence,
    ),
    TopicPolicy(
        path="inactiveTopicPolicies",
        what="when the topic is deleted for being unused",
        field="inactiveTopicPolicies",
        parse=kinds.inactive_topics,
        body="InactiveTopicPolicies",
        applied=lambda found, _: found.inactive.to_json(),
    ),
    _count(
        "maxUnackedMessagesOnConsumer",
        "the most unacknowledged messages of a consumer",
        "maxUnackedMessagesOnConsumer",
        lambda found, _: found.unacked_per_consumer_max,
    ),
    _count(
        "maxUnackedMessagesOnSubscription",
        "the most unacknowledged messages of a subscription",
        "maxUnackedMessagesOnSubscription",
        lambda found, _: found.unacked_per_subscription_max,
    ),
    _count("maxProducers", "the most producers", "maxProducerPerTopic", lambda found, _: found.producers_max),
    _count("maxConsumers", "the most consumers", "maxConsumerPerTopic", lambda found, _: found.consumers_max),
    _count("maxConsumersPerSubscription", "the most consumers of a subscription", "maxConsumersPerSubscription", None),
    _count("maxSubscriptionsPerTopic", "the most subscriptions", "maxSubscriptionsPerTopic", None),
    _count("maxMessageSize", "the largest message, in bytes", "maxMessageSize", None),
    _count(
        "compactionThreshold",
        "the backlog that starts a compaction, in bytes",
        "compactionThreshold",
        lambda found, _: found.compaction_threshold_bytes,
    ),
    _rate("dispatchRate", "the limit on delivery", lambda found, _: dispatch_json(found.dispatch_rate)),
    _rate(
        "subscriptionDispatchRate",
        "the limit on delivery of each subscription",
        lambda found, _: dispatch_json(found.subscription_dispatch_rate),
    ),
    _rate(
        "replicatorDispatchRate",
        "the limit on replication to other clusters",
        lambda found, _: dispatch_json(found.replicator_dispatch_rate),
    ),
    TopicPolicy(
        path="publishRate",
        what="the limit on publishing",
        field="publishRate",
        parse=kinds.publish_rate,
        body="PublishRate",
        applied=lambda found, _: (found.publish_rate or PublishRate(0, 0)).to_json(),
    ),
    TopicPolicy(
        path="subscribeRate",
        what="how often a consumer may subscribe",
        field="subscribeRate",
        parse=kinds.subscribe_rate,
        body="SubscribeRate",
        applied=lambda found, _: (found.subscribe_rate or SubscribeRate(0, 30)).to_json(),
    ),
    TopicPolicy(
        path="subscriptionTypesEnabled",
        what="the types of subscriptions that are allowed",
        field="subscriptionTypesEnabled",
        parse=kinds.subscription_types,
        body="a list of types",
        unset=[],
        applied=lambda found, _: list(found.subscription_types),
    ),
    TopicPolicy(
        path="schemaCompatibilityStrategy",
        what="what new schemas must fit",
        field="schemaCompatibilityStrategy",
        parse=kinds.strategy,
        body="a strategy's name",
        method="PUT",
        applied=lambda found, _: str(found.schema_compatibility),
    ),
    TopicPolicy(
        path="schemaValidationEnforced",
        what="whether producers must have a schema",
        field="schemaValidationEnforced",
        parse=kinds.switch,
        body="true or false",
        unset=False,
        can_remove=False,
        applied=lambda found, _: found.schema_validation_enforced,
    ),
    TopicPolicy(
        path="autoSubscriptionCreation",
        what="whether subscriptions are made by using them",
        field="autoSubscriptionCreationOverride",
        parse=kinds.auto_subscription,
        body="AutoSubscriptionCreationOverride",
        applied=lambda found, _: {"allowAutoSubscriptionCreation": found.auto_create_subscriptions},
    ),
    TopicPolicy(
        path="replication",
        what="the clusters the topic is in",
        field="replicationClusters",
        parse=kinds.names,
        body="a list of clusters",
        applied=lambda found, _: list(found.replication_clusters),
    ),
    TopicPolicy(
        path="dispatcherPauseOnAckStatePersistent",
        what="whether delivery waits for acknowledgements that cannot be stored",
        field="dispatcherPauseOnAckStatePersistentEnabled",
        parse=kinds.always_on,
        body="",
        unset=False,
        applied=lambda found, _: found.pause_on_ack_state,
    ),
]
