"""SEEK: a subscription begins again at a message, or at a time. All its consumers are disconnected and come back.

Batch:     the ack set of a message id says which messages of its entry are wanted, as Java's client sends it to seek
           into a batch; the others count as acknowledged.
"""

from __future__ import annotations

from magnetar.broker.pulsar.consumer import ConsumerHandle
from magnetar.broker.pulsar.ids import position_of
from magnetar.broker.pulsar.session import Session
from magnetar.errors import MetadataError
from magnetar.wire.pulsar.encode import encode_success
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand, CommandSeek


def handle(session: Session, command: BaseCommand) -> None:
    seek = command.seek
    handle = session.consumers.get(seek.consumer_id)
    if not seek.HasField("message_id") and not seek.HasField("message_publish_time"):
        session.refuse(seek.request_id, MetadataError("neither a message id nor a publish time to seek to"))
    elif handle is None:
        session.refuse(seek.request_id, MetadataError("there is no such consumer on this connection"))
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
