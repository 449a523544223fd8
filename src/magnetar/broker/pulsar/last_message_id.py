"""GET_LAST_MESSAGE_ID: the last message of the topic, down to its place in a batch, and the cursor's mark.

An empty topic answers −1:−1. A consumer that reads compacted gets the last message of the compacted view if nothing
came after it.
"""

from __future__ import annotations

from magnetar.broker.pulsar.consumer import ConsumerHandle
from magnetar.broker.pulsar.ids import unsigned
from magnetar.broker.pulsar.session import Session
from magnetar.errors import MetadataError
from magnetar.topic.position import Position
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand, MessageIdData


def handle(session: Session, command: BaseCommand) -> None:
    request = command.getLastMessageId
    handle = session.consumers.get(request.consumer_id)
    if handle is None:
        session.refuse(request.request_id, MetadataError("there is no such consumer on this connection"))
    else:
        session.serve(_answer(session, handle, request.request_id), request.request_id)


async def _answer(session: Session, handle: ConsumerHandle, request_id: int) -> None:
    last = await handle.topic.last_message(read_compacted=handle.consumer.read_compacted)
    command = BaseCommand(type=BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE)
    response = command.getLastMessageIdResponse
    response.request_id = request_id
    _fill(response.last_message_id, last.position)
    response.last_message_id.partition = handle.topic.name.partition
    response.last_message_id.batch_index = last.batch_index
    _fill(response.consumer_mark_delete_position, handle.topic.mark_delete_of(handle.subscription))
    session.answer_command(command)


def _fill(message_id: MessageIdData, position: Position) -> None:
    message_id.ledgerId = unsigned(position.ledger_id)
    message_id.entryId = unsigned(position.entry_id)
