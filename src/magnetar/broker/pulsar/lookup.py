"""LOOKUP: which broker serves a topic. Answered with this broker, or with the one to ask or to connect to.

The topic need not exist. A namespace that does not is `TopicNotFound`, as in Pulsar. Too many at once are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from magnetar.broker.names import TopicName
from magnetar.broker.pulsar.errors import code_of, message_of
from magnetar.broker.pulsar.session import Session
from magnetar.errors import MagnetarError, TooManyRequestsError
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand, CommandLookupTopic, CommandLookupTopicResponse


@contextmanager
def lookup_turn(session: Session) -> Iterator[None]:
    """One of the lookups that may be in progress at once, of all connections."""
    front_end = session.front_end
    if front_end.lookups >= session.config.lookups_in_progress_max:
        raise TooManyRequestsError(f"{front_end.lookups} lookups are in progress, as many as may be: try again")
    front_end.lookups += 1
    try:
        yield
    finally:
        front_end.lookups -= 1


def handle(session: Session, command: BaseCommand) -> None:
    session.serve(_answer(session, command.lookupTopic), command.lookupTopic.request_id)


async def _answer(session: Session, lookup: CommandLookupTopic) -> None:
    command = BaseCommand(type=BaseCommand.LOOKUP_RESPONSE)
    response = command.lookupTopicResponse
    response.request_id = lookup.request_id
    try:
        with lookup_turn(session):
            await _look_up(session, lookup, response)
    except (MagnetarError, TimeoutError) as error:
        response.response = CommandLookupTopicResponse.Failed
        response.error = code_of(error)  # type: ignore[assignment]
        response.message = message_of(error)
    session.answer_command(command)


async def _look_up(session: Session, lookup: CommandLookupTopic, response: CommandLookupTopicResponse) -> None:
    topic = TopicName.parse(lookup.topic)
    found = await session.service.look_up(topic, lookup.advertised_listener_name.strip())
    response.brokerServiceUrl = found.url
    response.response = CommandLookupTopicResponse.Connect if found.is_owner else CommandLookupTopicResponse.Redirect
    response.authoritative = True
