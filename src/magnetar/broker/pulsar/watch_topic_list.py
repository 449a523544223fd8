"""WATCH_TOPIC_LIST: the topics of a namespace that match a pattern now, and every later change of that list.

The namespace's node is followed; a client gets what came and went since it was last told, and the hash of the whole.
Changes that come faster than they are read are told together.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from magnetar.broker.names import NamespaceName
from magnetar.broker.pulsar.lookup import lookup_turn
from magnetar.broker.pulsar.session import Session
from magnetar.broker.pulsar.topics_pattern import ALL_TOPICS, compile_pattern, hash_of, matching
from magnetar.errors import NotAllowedError
from magnetar.wire.pulsar.encode import encode_success
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand, CommandWatchTopicList

WATCHERS_MAX = 1_000  # Of one connection; each follows a node of the store.


class TopicListWatcher:
    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None

    def close(self) -> None:
        if self.task is not None:
            self.task.cancel()


def handle(session: Session, command: BaseCommand) -> None:
    request = command.watchTopicList
    if len(session.watchers) >= WATCHERS_MAX:
        session.refuse(request.request_id, NotAllowedError(f"a connection has at most {WATCHERS_MAX} watchers"))
        return
    known = session.watchers.pop(request.watcher_id, None)
    if known is not None:  # A client that asks again wants the whole list again.
        known.close()
    watcher = session.watchers[request.watcher_id] = TopicListWatcher()
    watcher.task = session.serve(_follow(session, request, watcher), request.request_id)


def handle_close(session: Session, command: BaseCommand) -> None:
    request = command.watchTopicListClose
    watcher = session.watchers.pop(request.watcher_id, None)
    if watcher is not None:
        watcher.close()
    session.answer(encode_success(request.request_id))


async def _follow(session: Session, request: CommandWatchTopicList, watcher: TopicListWatcher) -> None:
    pattern = compile_pattern(request.topics_pattern or ALL_TOPICS, session.config.topics_pattern_characters_max)
    try:
        if pattern is None:
            raise NotAllowedError(
                f"the broker does not match {request.topics_pattern!r}: it is too long or may take too long; ask for "
                "the topics of the namespace instead"
            )
        namespace = NamespaceName.parse(request.namespace)
        with lookup_turn(session):
            await session.service.require_namespace(namespace)
        told: list[str] | None = None
        async with aclosing(session.service.follow_topics(namespace)) as lists:
            async for topics in lists:
                names = [str(topic) for topic in matching(topics, pattern)]
                _tell(session, request, told, names)
                told = names
                session.takes_long()
    finally:
        if session.watchers.get(request.watcher_id) is watcher:
            del session.watchers[request.watcher_id]


def _tell(session: Session, request: CommandWatchTopicList, told: list[str] | None, names: list[str]) -> None:
    if told is None:
        command = BaseCommand(type=BaseCommand.WATCH_TOPIC_LIST_SUCCESS)
        success = command.watchTopicListSuccess
        success.request_id = request.request_id
        success.watcher_id = request.watcher_id
        success.topics_hash = hash_of(names)
        if not request.HasField("topics_hash") or request.topics_hash != success.topics_hash:
            success.topic.extend(names)
        session.answer_command(command)
        return
    before, now = frozenset(told), frozenset(names)
    if before == now:
        return
    command = BaseCommand(type=BaseCommand.WATCH_TOPIC_UPDATE)
    update = command.watchTopicUpdate
    update.watcher_id = request.watcher_id
    update.new_topics.extend(sorted(now - before))
    update.deleted_topics.extend(sorted(before - now))
    update.topics_hash = hash_of(names)
    session.answer_command(command)
