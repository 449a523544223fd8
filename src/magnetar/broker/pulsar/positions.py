"""Commands about positions in a topic: SEEK and GET_LAST_MESSAGE_ID.

After a SEEK a subscription begins again at a message, or at a time. All its consumers are disconnected and come back.
The ack set of a message id names the messages of its entry that are wanted, as Java's client sends it to seek into a
batch; the others count as acknowledged. GET_LAST_MESSAGE_ID returns the last message of the topic, with its index in a
batch, and the cursor's mark. An empty topic answers −1:−1. A consumer that reads compacted gets the last message of the
compacted view if nothing came after it.
"""

from __future__ import annotations

from magnetar.broker.pulsar.consumer import ConsumerHandle
from magnetar.broker.pulsar.session import Session
from magnetar.broker.pulsar.values import position_of, unsigned
from magnetar.errors import MetadataError
from magnetar.topic.position import Position
from magnetar.wire.pulsar.encode import encode_success
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand, CommandSeek, MessageIdData


def handle_seek(session: Session, command: BaseCommand) -> None:
    seek = command.seek
    handle = session.consumers.get(seek.consumer_id)
    if not seek.HasField("message_id") and not seek.HasField("message_publish_time"):
        session.refuse(seek.request_id, MetadataError("neither a message id nor a publish time to seek to"))
    elif handle is None:
        session.refuse(seek.request_id, MetadataError("this connection has no such consumer"))
    else:
        session.serve(_seek(session, handle, seek), seek.request_id)


async def _seek(session: Session, handle: ConsumerHandle, seek: CommandSeek) -> None:
    if seek.HasField("message_id"):
        message_id = seek.message_id
        wanted = list(message_id.ack_set)
        await handle.topic.seek(handle.subscription, position_of(message_id), wanted, message_id.batch_size)
    else:
        await handle.topic.seek_to_time(handle.subscription, seek.message_publish_time)
    session.answer(encode_success(seek.request_id))


def handle_last_message_id(session: Session, command: BaseCommand) -> None:
    request = command.getLastMessageId
    handle = session.consumers.get(request.consumer_id)
    if handle is None:
        session.refuse(request.request_id, MetadataError("this connection has no such consumer"))
    else:
        session.serve(_answer_last_message_id(session, handle, request.request_id), request.request_id)


async def _answer_last_message_id(session: Session, handle: ConsumerHandle, request_id: int) -> None:
    last = await handle.topic.last_message(read_compacted=handle.consumer.read_compacted)
    command = BaseCommand(type=BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE)
    response = command.getLastMessageIdResponse
    response.request_id = request_id
    _fill(response.last_message_id, last.position)
    response.last_message_id.partition = handle.topic.name.partition
    response.last_message_id.batch_index = last.batch_index
    _fill(response.consumer_mark_delete_position, handle.subscription.mark_delete)
    session.answer_command(command)


def _fill(message_id: MessageIdData, position: Position) -> None:
    message_id.ledgerId = unsigned(position.ledger_id)
    message_id.entryId = unsigned(position.entry_id)
