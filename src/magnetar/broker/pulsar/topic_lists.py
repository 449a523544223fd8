"""Topics by pattern: GET_TOPICS_OF_NAMESPACE and WATCH_TOPIC_LIST, with the match and the hash of a list of names.

The first returns the topics, by a pattern if the broker can match it; or the answer that none changed. The second
returns the topics that match a pattern now, and every later change of that list. The namespace's node is followed; a
client gets what was added and removed since its last update, and the hash of the whole. Changes that come faster than
they are read arrive together.

A pattern is matched with the whole name without `persistent://`, for a partition with that of its topic. Patterns that
could take long on some name (a repeated group, many repetitions, references back) are not matched by the broker; the
client gets all names and matches itself.

Format:    The hash is CRC-32C of the sorted names with commas between, as eight hexadecimal digits, lowest byte first:
           as Java's Guava writes it, since clients compare it with their own.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from contextlib import aclosing
from typing import Final

from crc32c import crc32c

from magnetar.broker.pulsar.session import Session
from magnetar.errors import NotAllowedError
from magnetar.names import Domain, NamespaceName, TopicName
from magnetar.runtime.slices import Slices
from magnetar.wire.pulsar.encode import encode_success
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand, CommandGetTopicsOfNamespace, CommandWatchTopicList

ALL_TOPICS: Final = ".*"
_SCHEME: Final = re.compile(r"(?:non-)?persistent://")
_REPETITIONS_MAX: Final = 3  # Each multiplies the time by the name's length.
_UNSAFE: Final = re.compile(r"\)[*+?{]|\(\?|\\[0-9]")
_REPETITION: Final = re.compile(r"(?<!\\)[*+{]")


def compile_pattern(text: str, characters_max: int) -> re.Pattern[str] | None:
    """Returns None if the broker does not match it."""
    bare = _SCHEME.sub("", text)
    if len(text) > characters_max or _UNSAFE.search(bare) or len(_REPETITION.findall(bare)) > _REPETITIONS_MAX:
        return None
    try:
        return re.compile(bare)
    except (re.error, OverflowError, RecursionError):
        return None


async def matching(names: Iterable[TopicName], pattern: re.Pattern[str] | None, slices: Slices) -> list[str]:
    """Returns all names without a pattern. They are sorted, as their hash is that of a sorted list."""
    found = []
    for name in names:
        if pattern is None or pattern.fullmatch(str(name.without_partition()).partition("://")[2]):
            found.append(str(name))
        await slices.turn()
    return sorted(found)


def hash_of(names: Iterable[str]) -> str:
    return crc32c(",".join(sorted(names)).encode()).to_bytes(4, "little").hex()


# --- commands ---------------------------------------------------------------------------------------------------------

WATCHERS_MAX: Final = 1_000  # The limit of one connection; each follows a node of the store.
_DOMAINS: Final = {
    CommandGetTopicsOfNamespace.PERSISTENT: (Domain.PERSISTENT,),
    CommandGetTopicsOfNamespace.NON_PERSISTENT: (Domain.NON_PERSISTENT,),
    CommandGetTopicsOfNamespace.ALL: (Domain.PERSISTENT, Domain.NON_PERSISTENT),
}


def handle_get(session: Session, command: BaseCommand) -> None:
    session.serve(_answer(session, command.getTopicsOfNamespace), command.getTopicsOfNamespace.request_id)


async def _answer(session: Session, request: CommandGetTopicsOfNamespace) -> None:
    with session.lookups.turn():
        namespace = NamespaceName.parse(request.namespace)
        topics = await session.service.topics_of(namespace, _DOMAINS[request.mode])
    pattern = None
    if request.HasField("topics_pattern"):
        pattern = compile_pattern(request.topics_pattern, session.config.topics_pattern_characters_max)
    names = await matching(topics, pattern, session.service.slices)
    command = BaseCommand(type=BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE)
    response = command.getTopicsOfNamespaceResponse
    response.request_id = request.request_id
    response.topics_hash = hash_of(names)
    response.filtered = pattern is not None
    response.changed = not request.HasField("topics_hash") or request.topics_hash != response.topics_hash
    if response.changed:
        response.topics.extend(names)
    session.answer_command(command)


def handle_watch(session: Session, command: BaseCommand) -> None:
    request = command.watchTopicList
    if len(session.watchers) >= WATCHERS_MAX:
        session.refuse(request.request_id, NotAllowedError(f"a connection has at most {WATCHERS_MAX} watchers"))
        return
    known = session.watchers.pop(request.watcher_id, None)
    if known is not None:  # A client that asks again wants the whole list again.
        known.cancel()
    session.watchers[request.watcher_id] = session.serve(_follow(session, request), request.request_id)


def handle_watch_close(session: Session, command: BaseCommand) -> None:
    request = command.watchTopicListClose
    watcher = session.watchers.pop(request.watcher_id, None)
    if watcher is not None:
        watcher.cancel()
    session.answer(encode_success(request.request_id))


async def _follow(session: Session, request: CommandWatchTopicList) -> None:
    pattern = compile_pattern(request.topics_pattern or ALL_TOPICS, session.config.topics_pattern_characters_max)
    try:
        if pattern is None:
            raise NotAllowedError(
                f"the broker does not match {request.topics_pattern!r}: it is too long or may take too long; ask for "
                "the topics of the namespace instead"
            )
        namespace = NamespaceName.parse(request.namespace)
        with session.lookups.turn():
            await session.service.require_namespace(namespace)
        reported: list[str] | None = None
        async with aclosing(session.service.follow_topics(namespace)) as lists:
            async for topics in lists:
                names = await matching(topics, pattern, session.service.slices)
                _report(session, request, reported, names)
                reported = names
                session.takes_long()
    finally:
        if session.watchers.get(request.watcher_id) is asyncio.current_task():
            del session.watchers[request.watcher_id]


def _report(session: Session, request: CommandWatchTopicList, reported: list[str] | None, names: list[str]) -> None:
    if reported is None:
        command = BaseCommand(type=BaseCommand.WATCH_TOPIC_LIST_SUCCESS)
        success = command.watchTopicListSuccess
        success.request_id = request.request_id
        success.watcher_id = request.watcher_id
        success.topics_hash = hash_of(names)
        if not request.HasField("topics_hash") or request.topics_hash != success.topics_hash:
            success.topic.extend(names)
        session.answer_command(command)
        return
    before, now = frozenset(reported), frozenset(names)
    if before == now:
        return
    command = BaseCommand(type=BaseCommand.WATCH_TOPIC_UPDATE)
    update = command.watchTopicUpdate
    update.watcher_id = request.watcher_id
    update.new_topics.extend(sorted(now - before))
    update.deleted_topics.extend(sorted(before - now))
    update.topics_hash = hash_of(names)
    session.answer_command(command)
