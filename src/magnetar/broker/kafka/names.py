"""Names of topics, as Kafka's clients write them and as the broker has them.

A name without a slash is a topic of the front end's namespace, `tenant/namespace/topic` one of another namespace. A
topic has one name for clients: one of the front end's namespace always has the short name. Partition i of a Kafka topic
is the topic `name-partition-i`; a topic without partitions is its own partition 0.

Failure:   What cannot be a topic, or is one of a broker's own, is INVALID_TOPIC_EXCEPTION. A single partition has no
           name of its own.
"""

from __future__ import annotations

from typing import Final

from magnetar.errors import InvalidNameError, KafkaRefusedError
from magnetar.names import NamespaceName, TopicName
from magnetar.wire.kafka.error_codes import ErrorCode
from magnetar.words import counted

OFFSETS_NAMESPACE: Final = NamespaceName("public", "__kafka")
"""Has the topic in which coordinators keep the state of groups."""


def topic_of(name: str, namespace: NamespaceName) -> TopicName:
    """Returns the topic without a partition."""
    try:
        topic = TopicName.parse(name) if "/" in name else namespace.topic(name)
    except InvalidNameError as error:
        raise _invalid(str(error)) from None
    if not topic.is_persistent:
        raise _invalid(f"topic {name} keeps no messages: Kafka clients use persistent topics only")
    if topic.is_partition or topic.is_system or topic.namespace == OFFSETS_NAMESPACE:
        raise _invalid(f"topic {name} is a single partition, or a topic of the broker's own: name another topic")
    return topic


def name_of(topic: TopicName, namespace: NamespaceName) -> str:
    """Returns the name that clients see."""
    return topic.local if topic.namespace == namespace else f"{topic.namespace}/{topic.local}"


def partition_of(topic: TopicName, index: int, partitions: int) -> TopicName:
    """Returns the topic that holds a partition's messages. `partitions`: 0 for a topic without partitions."""
    if not 0 <= index < max(1, partitions):
        raise KafkaRefusedError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"topic {topic} has {counted(max(1, partitions), 'partition')}: {index} does not exist",
        )
    return topic.with_partition(index) if partitions else topic


def _invalid(why: str) -> KafkaRefusedError:
    return KafkaRefusedError(ErrorCode.INVALID_TOPIC_EXCEPTION, why)
