"""What is asked of a namespace rather than of a topic in it: topics that are not there yet, and limits on all."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.broker.policies.fields import Json, flag, nested, number, optional_number, text
from magnetar.config.broker import BrokerConfig

_PARTITIONED = "partitioned"


@dataclass(frozen=True, slots=True)
class AutoTopicCreation:
    """What happens when a topic is asked for that is not there."""

    is_allowed: bool
    partitions: int
    """0: a topic without partitions."""


def auto_topic_creation(policies: Json, config: BrokerConfig) -> AutoTopicCreation:
    override = nested(policies, "autoTopicCreationOverride")
    if override is None:
        partitions = config.auto_create_partitions if config.auto_create_topics_type == _PARTITIONED else 0
        return AutoTopicCreation(config.auto_create_topics, partitions)
    is_partitioned = text(override, "topicType") == _PARTITIONED
    partitions = number(override, "defaultNumPartitions", config.auto_create_partitions) if is_partitioned else 0
    return AutoTopicCreation(flag(override, "allowAutoTopicCreation") or False, partitions)


def topics_max(policies: Json, config: BrokerConfig) -> int:
    """Topics of the namespace, each partition counted; 0: no limit."""
    found = optional_number(policies, "max_topics_per_namespace")
    return config.topics_per_namespace_max if found is None else found
