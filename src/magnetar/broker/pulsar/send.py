"""SEND: received messages. The hot path: one loop over what one read of the socket brought.

Order:     Messages of one producer are published in the order in which they came. What cannot be taken now stays in the
           connection's buffer, and everything after it too.
Failure:   A message that cannot be published gets SEND_ERROR, which makes the client reconnect and send again, or give
           up where the error is final. A message for a producer that was just closed is dropped silently; one for a
           producer that never existed ends the connection, as in Pulsar.
"""

from __future__ import annotations

from magnetar.broker.pulsar.errors import message_of, publish_code_of
from magnetar.broker.pulsar.session import Session
from magnetar.errors import DigestMismatchError, MagnetarError, NotAllowedError, RemoteProtocolError
from magnetar.wire.pulsar.encode import encode_send_error
from magnetar.wire.pulsar.entry import has_broker_header, metadata_of
from magnetar.wire.pulsar.frames import Buffer, verify_checksum
from magnetar.wire.pulsar.hot_path import Send, SendRun
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import CommandSend, MessageMetadata

_NO_TRANSACTIONS = "this broker has no transactions: send without one"


def handle_run(session: Session, buffer: Buffer, start: int, run: SendRun) -> int:
    """Returns where it stopped: at the end of the run, or before what could not be taken."""
    sends, view, now = run.sends, memoryview(buffer), session.loop.time()
    first, count, size = 0, len(sends), 0
    taken = 0
    try:
        while first < count:
            producer_id = sends[first][0]
            end = _end_of_producer(sends, first)
            producer = session.producers.get(producer_id)
            if producer is None or producer.is_closed:
                _drop(session, producer_id)
                first = end
                continue
            run_taken = producer.topic.publisher.publish_run(producer, sends, first, end, view, now)
            size += run_taken.size
            taken += run_taken.entries
            for sequence_id, error in run_taken.refused:
                _refuse(session, producer_id, sequence_id, error)
            first = run_taken.end
            if first < end:
                producer.topic.publisher.wait_for_room(session)
                break
    finally:  # Also after a message that ends the connection, for those before it.
        if taken:
            session.on_taken(taken, size)
    if not first:
        return start
    _, _, _, _, offset, length = sends[first - 1]
    return offset + length


def _end_of_producer(sends: list[Send], first: int) -> int:
    """Returns the end of the messages of the same producer that follow one another."""
    producer_id, count = sends[first][0], len(sends)
    end = first + 1
    while end < count and sends[end][0] == producer_id:
        end += 1
    return end


def handle_one(session: Session, send: CommandSend, body: Buffer) -> bool:
    """Handles a SEND that is not plain: a chunk, a marker, a wrong checksum, …. Returns False to be called again
    later."""
    producer = session.producers.get(send.producer_id)
    if producer is None or producer.is_closed:
        _drop(session, send.producer_id)
        return True
    publisher = producer.topic.publisher
    if not publisher.has_room:
        publisher.wait_for_room(session)
        return False
    sequence_id, highest = send.sequence_id, send.highest_sequence_id
    token = (producer, sequence_id, highest, max(1, send.num_messages), len(body), session.loop.time())
    try:
        _require_publishable(send, body)
        metadata = metadata_of(body) if send.is_chunk or send.marker else None
        if send.is_chunk:
            producer.chunked_in += 1
        publisher.publish(token, body, counts=metadata is None or _counts(send, metadata))
    except MagnetarError as error:
        _refuse(session, send.producer_id, max(sequence_id, highest), error)
    else:
        session.on_taken(1, len(body))
    return True


def _require_publishable(send: CommandSend, body: Buffer) -> None:
    if not verify_checksum(body):
        raise DigestMismatchError("the checksum of the message is wrong: it was damaged in transit")
    if has_broker_header(body):
        raise NotAllowedError("the message begins like a broker's own header, which only brokers write")
    if send.txnid_most_bits or send.txnid_least_bits:
        raise NotAllowedError(_NO_TRANSACTIONS)
    if send.HasField("message_id"):
        raise NotAllowedError("only a shadow topic takes messages with a given id, and this broker has none")
    if (
        send.HasField("highest_sequence_id")
        and send.highest_sequence_id
        and send.sequence_id > send.highest_sequence_id
    ):
        raise NotAllowedError(f"sequence id {send.sequence_id} is beyond the highest, {send.highest_sequence_id}")


def _counts(send: CommandSend, metadata: MessageMetadata) -> bool:
    """Whether deduplication counts its sequence id: only a message's last chunk completes it, and markers have none."""
    return not send.marker and metadata.chunk_id == metadata.num_chunks_from_msg - 1


def _drop(session: Session, producer_id: int) -> None:
    if producer_id not in session.closed_producers:
        raise RemoteProtocolError(f"this connection has no producer {producer_id}, but sent a message for it")


def _refuse(session: Session, producer_id: int, sequence_id: int, error: MagnetarError) -> None:
    session.answer(encode_send_error(producer_id, sequence_id, publish_code_of(error), message_of(error)))
