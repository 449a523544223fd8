"""PARTITIONED_METADATA: how many partitions a topic has; 0: none, it is one by itself.

A topic that is not there is made on the way if it is to be a partitioned one by itself and the client wants that;
else it is not partitioned, or, for a client that only asks, not found.
"""

from __future__ import annotations

from magnetar.broker.names import TopicName
from magnetar.broker.pulsar.errors import code_of, message_of
from magnetar.broker.pulsar.lookup import lookup_turn
from magnetar.broker.pulsar.session import Session
from magnetar.errors import MagnetarError
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import (
    BaseCommand,
    CommandPartitionedTopicMetadata,
    CommandPartitionedTopicMetadataResponse,
)


def handle(session: Session, command: BaseCommand) -> None:
    session.serve(_answer(session, command.partitionMetadata), command.partitionMetadata.request_id)


async def _answer(session: Session, request: CommandPartitionedTopicMetadata) -> None:
    command = BaseCommand(type=BaseCommand.PARTITIONED_METADATA_RESPONSE)
    response = command.partitionMetadataResponse
    response.request_id = request.request_id
    try:
        with lookup_turn(session):
            topic = TopicName.parse(request.topic)
            create = request.metadata_auto_creation_enabled
            response.partitions = await session.service.partitions_of(topic, create=create)
        response.response = CommandPartitionedTopicMetadataResponse.Success
    except (MagnetarError, TimeoutError) as error:
        response.response = CommandPartitionedTopicMetadataResponse.Failed
        response.error = code_of(error)  # type: ignore[assignment]
        response.message = message_of(error)
    session.answer_command(command)
