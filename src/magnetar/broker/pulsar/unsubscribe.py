"""UNSUBSCRIBE: the subscription is deleted, with everything it knew, unless others are still connected to it.

Failure:   a consumer that was let go for it is closed, after the answer: its client comes back to what is left.
"""

from __future__ import annotations

from magnetar.broker.pulsar.consumer import ConsumerHandle
from magnetar.broker.pulsar.session import Session
from magnetar.errors import MagnetarError, MetadataError
from magnetar.wire.pulsar.encode import encode_success
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand


def handle(session: Session, command: BaseCommand) -> None:
    unsubscribe = command.unsubscribe
    handle = session.consumers.get(unsubscribe.consumer_id)
    if handle is None:
        session.refuse(unsubscribe.request_id, MetadataError("there is no such consumer on this connection"))
        return
    session.serve(_unsubscribe(session, handle, unsubscribe.request_id, unsubscribe.force), unsubscribe.request_id)


async def _unsubscribe(session: Session, handle: ConsumerHandle, request_id: int, force: bool) -> None:
    try:
        await handle.topic.unsubscribe(handle.subscription, handle.consumer, force=force)
    except (MagnetarError, TimeoutError) as error:
        session.refuse(request_id, error)
        if not handle.consumer.is_connected:
            handle.disconnect("the subscription could not be deleted")
        return
    handle.close()
    session.answer(encode_success(request_id))
