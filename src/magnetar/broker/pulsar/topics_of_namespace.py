"""GET_TOPICS_OF_NAMESPACE: the topics of a namespace, by a pattern if the broker can match it; or that none changed."""

from __future__ import annotations

from typing import Final

from magnetar.broker.names import Domain, NamespaceName
from magnetar.broker.pulsar.lookup import lookup_turn
from magnetar.broker.pulsar.session import Session
from magnetar.broker.pulsar.topics_pattern import compile_pattern, hash_of, matching
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand, CommandGetTopicsOfNamespace

_DOMAINS: Final = {
    CommandGetTopicsOfNamespace.PERSISTENT: (Domain.PERSISTENT,),
    CommandGetTopicsOfNamespace.NON_PERSISTENT: (Domain.NON_PERSISTENT,),
    CommandGetTopicsOfNamespace.ALL: (Domain.PERSISTENT, Domain.NON_PERSISTENT),
}


def handle(session: Session, command: BaseCommand) -> None:
    session.serve(_answer(session, command.getTopicsOfNamespace), command.getTopicsOfNamespace.request_id)


async def _answer(session: Session, request: CommandGetTopicsOfNamespace) -> None:
    with lookup_turn(session):
        namespace = NamespaceName.parse(request.namespace)
        topics = await session.service.topics_of(namespace, _DOMAINS[request.mode])
    pattern = None
    if request.HasField("topics_pattern"):
        pattern = compile_pattern(request.topics_pattern, session.config.topics_pattern_characters_max)
    names = [str(topic) for topic in (topics if pattern is None else matching(topics, pattern))]
    command = BaseCommand(type=BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE)
    response = command.getTopicsOfNamespaceResponse
    response.request_id = request.request_id
    response.topics_hash = hash_of(names)
    response.filtered = pattern is not None
    response.changed = not request.HasField("topics_hash") or request.topics_hash != response.topics_hash
    if response.changed:
        response.topics.extend(names)
    session.answer_command(command)
