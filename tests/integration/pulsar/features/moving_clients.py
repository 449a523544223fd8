"""Consumers on a cluster whose bundles move: a message that comes again because its topic has moved is skipped.

A consumer whose topic moves gets again what it has not acknowledged, and also what it has acknowledged if the
acknowledgement was on the way. Both are what Pulsar promises, and no test of other things can assert their absence.
Everything else that comes again fails a test as usual.

Invariant: A message is skipped only if its bundle was unloaded after it was received before; only if the same consumer
           received it, or a consumer of its subscription acknowledged it; and not if the test asked for it again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

import pulsar
import pulsar.asyncio

HasMoved: TypeAlias = Callable[[str, float], bool]
"""Whether a topic has moved since a time of `time.monotonic`."""


class Seen:
    """What the consumers of one subscription have acknowledged: message → when."""

    def __init__(self, has_moved: HasMoved) -> None:
        self._has_moved = has_moved
        self._acknowledged_s: dict[str, float] = {}

    def is_again(self, message: pulsar.Message, received_s: dict[str, float]) -> bool:
        """`received_s` is what the same consumer has received, to which the message is added."""
        name = _name_of(message)
        before = [each[name] for each in (received_s, self._acknowledged_s) if name in each]
        received_s[name] = time.monotonic()
        return any(self._has_moved(message.topic_name(), before_s) for before_s in before)

    def is_acknowledged(self, message: pulsar.Message) -> bool:
        return _name_of(message) in self._acknowledged_s

    def acknowledge(self, message: pulsar.Message | pulsar.MessageId) -> None:
        if isinstance(message, pulsar.Message):
            self._acknowledged_s[_name_of(message)] = time.monotonic()

    def forget(self) -> None:
        self._acknowledged_s.clear()


def _name_of(message: pulsar.Message) -> str:
    return f"{message.topic_name()} {message.message_id()}"


class _Consumer:
    """Everything that is not here is the official consumer's."""

    def __init__(self, consumer: Any, seen: Seen) -> None:
        self._consumer = consumer
        self._seen = seen
        self._received_s: dict[str, float] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    def negative_acknowledge(self, message: pulsar.Message) -> Any:
        self._received_s.pop(_name_of(message), None)
        return self._consumer.negative_acknowledge(message)

    def redeliver_unacknowledged_messages(self) -> Any:
        self._received_s.clear()
        return self._consumer.redeliver_unacknowledged_messages()

    def acknowledge(self, message: Any) -> Any:
        self._seen.acknowledge(message)
        return self._consumer.acknowledge(message)


_PATIENCE_S: Final = 20.0
_PAUSE_S: Final = 0.05
_UNCONNECTED: Final = (pulsar.Result.NotConnected, pulsar.Result.BrokerMetadataError)
"""What the client answers while a consumer moves to the next owner; the last one if the former has answered."""


def _again(ask: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return ask()
        except (pulsar.NotConnected, pulsar.BrokerMetadataError):
            if time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_S)


async def _again_async(ask: Callable[[], Awaitable[Any]]) -> Any:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return await ask()
        except pulsar.asyncio.PulsarException as error:
            if error.error() not in _UNCONNECTED or time.monotonic() > deadline:
                raise
            await asyncio.sleep(_PAUSE_S)


class Consumer(_Consumer):
    def seek(self, to: Any) -> None:
        self._received_s.clear()
        self._seen.forget()
        _again(lambda: self._consumer.seek(to))

    def unsubscribe(self) -> None:
        self._seen.forget()
        _again(self._consumer.unsubscribe)

    def get_last_message_id(self) -> Any:
        return _again(self._consumer.get_last_message_id)

    def receive(self, *arguments: Any) -> pulsar.Message:
        while True:
            message = self._consumer.receive(*arguments)
            if not self._seen.is_again(message, self._received_s):
                return message
            if self._seen.is_acknowledged(message):
                self._consumer.acknowledge(message)

    def batch_receive(self) -> list[pulsar.Message]:
        found = self._consumer.batch_receive()
        return [message for message in found if not self._seen.is_again(message, self._received_s)]


class AsyncConsumer(_Consumer):
    async def seek(self, to: Any) -> None:
        self._received_s.clear()
        self._seen.forget()
        await _again_async(lambda: self._consumer.seek(to))

    async def unsubscribe(self) -> None:
        self._seen.forget()
        await _again_async(self._consumer.unsubscribe)

    async def get_last_message_id(self) -> Any:
        return await _again_async(self._consumer.get_last_message_id)

    async def receive(self) -> pulsar.Message:
        while True:
            message = await self._consumer.receive()
            if not self._seen.is_again(message, self._received_s):
                return message
            if self._seen.is_acknowledged(message):
                await self._consumer.acknowledge(message)


class Reader:
    """Everything that is not here is the official reader's."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def seek(self, to: Any) -> None:
        _again(lambda: self._reader.seek(to))

    def has_message_available(self) -> bool:
        return bool(_again(self._reader.has_message_available))


class _Client:
    def __init__(self, client: Any, has_moved: HasMoved) -> None:
        self._client = client
        self._has_moved = has_moved
        self._seen: dict[tuple[str, str], Seen] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def _seen_by(self, topic: Any, subscription: str) -> Seen:
        return self._seen.setdefault((str(topic), subscription), Seen(self._has_moved))


class Client(_Client):
    def subscribe(self, topic: Any, subscription: str, *arguments: Any, **settings: Any) -> Any:
        """A consumer with a listener is the official one: it calls the test by itself."""
        found = self._client.subscribe(topic, subscription, *arguments, **settings)
        return found if "message_listener" in settings else Consumer(found, self._seen_by(topic, subscription))

    def create_reader(self, *arguments: Any, **settings: Any) -> Any:
        return Reader(self._client.create_reader(*arguments, **settings))


class AsyncClient(_Client):
    async def subscribe(self, topic: Any, subscription: str, *arguments: Any, **settings: Any) -> Any:
        found = await self._client.subscribe(topic, subscription, *arguments, **settings)
        return AsyncConsumer(found, self._seen_by(topic, subscription))
