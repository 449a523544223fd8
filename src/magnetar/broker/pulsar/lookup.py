"""Commands that ask for a topic before it is used: LOOKUP and PARTITIONED_METADATA. Too many at once are refused.

LOOKUP asks which broker serves a topic. It is answered with the owner, to connect to. If there is none, it is answered
with a broker to ask, and with whether that one was chosen to become the owner. The topic need not exist. A namespace
that does not exist is `TopicNotFound`, as in Pulsar. PARTITIONED_METADATA asks for the number of partitions; 0 for a
topic without any. A missing topic is made if it is to be a partitioned one and the client wants that; otherwise it is
not partitioned, or, for a client that only asks, not found.
"""

from __future__ import annotations

from magnetar.broker.front_end import PULSAR
from magnetar.broker.pulsar.errors import code_of, message_of
from magnetar.broker.pulsar.session import Session
from magnetar.errors import MagnetarError
from magnetar.names import TopicName
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import (
    BaseCommand,
    CommandLookupTopic,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadata,
    CommandPartitionedTopicMetadataResponse,
)


def handle_lookup(session: Session, command: BaseCommand) -> None:
    session.serve(_answer_lookup(session, command.lookupTopic), command.lookupTopic.request_id)


async def _answer_lookup(session: Session, lookup: CommandLookupTopic) -> None:
    command = BaseCommand(type=BaseCommand.LOOKUP_RESPONSE)
    response = command.lookupTopicResponse
    response.request_id = lookup.request_id
    try:
        with session.lookups.turn():
            await _look_up(session, lookup, response)
    except (MagnetarError, TimeoutError) as error:
        response.response = CommandLookupTopicResponse.Failed
        response.error = code_of(error)  # type: ignore[assignment]
        response.message = message_of(error)
    session.answer_command(command)


async def _look_up(session: Session, lookup: CommandLookupTopic, response: CommandLookupTopicResponse) -> None:
    topic = TopicName.parse(lookup.topic)
    owner = await session.service.look_up(topic, is_authoritative=lookup.authoritative)
    response.brokerServiceUrl = owner.address.url_for(PULSAR, lookup.advertised_listener_name.strip())
    response.response = (
        CommandLookupTopicResponse.Redirect if owner.is_candidate else CommandLookupTopicResponse.Connect
    )
    response.authoritative = owner.is_authoritative


def handle_partition_metadata(session: Session, command: BaseCommand) -> None:
    session.serve(_answer_partition_metadata(session, command.partitionMetadata), command.partitionMetadata.request_id)


async def _answer_partition_metadata(session: Session, request: CommandPartitionedTopicMetadata) -> None:
    command = BaseCommand(type=BaseCommand.PARTITIONED_METADATA_RESPONSE)
    response = command.partitionMetadataResponse
    response.request_id = request.request_id
    try:
        with session.lookups.turn():
            topic = TopicName.parse(request.topic)
            create = request.metadata_auto_creation_enabled
            response.partitions = await session.service.partitions_of(topic, create=create)
        response.response = CommandPartitionedTopicMetadataResponse.Success
    except (MagnetarError, TimeoutError) as error:
        response.response = CommandPartitionedTopicMetadataResponse.Failed
        response.error = code_of(error)  # type: ignore[assignment]
        response.message = message_of(error)
    session.answer_command(command)
