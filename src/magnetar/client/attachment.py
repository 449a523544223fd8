"""Keeps a producer or consumer attached to the broker that serves its topic, through lost connections and moved topics.

It looks the topic up, connects and attaches; when it is detached, it pauses and does all of that again.

Limits:    Opening has one time limit for all its attempts; a later time without a broker has another. When it is over,
           or when the broker refuses for good, the attachment has failed, and `error` is the reason, forever.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod

from magnetar.client.brokers import Brokers
from magnetar.client.connection import Connection, is_worth_another_try
from magnetar.errors import BrokerTimeoutError, BrokerUnavailableError, ClosedError, MagnetarError
from magnetar.runtime.backoff import Backoff
from magnetar.runtime.uncancelled import ignore_outcome
from magnetar.wire.pulsar.encode import encode_command
from magnetar.wire.pulsar.frames import Frame
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand


class Attachment(ABC):
    def __init__(self, brokers: Brokers, topic: str) -> None:
        self.topic = topic
        self.id = brokers.next_id()
        self.error: MagnetarError | None = None
        """Is set when it is closed or has failed."""
        self.connection: Connection | None = None
        """The connection to which it is attached now."""
        self._brokers = brokers
        self._loop = asyncio.get_running_loop()
        self._detached = asyncio.Event()
        self._attached = asyncio.Event()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._task: asyncio.Task[None] | None = None

    @abstractmethod
    async def _attach(self, connection: Connection) -> None:
        """Registers with the connection and asks the broker to accept it."""

    @abstractmethod
    def _on_attached(self, connection: Connection) -> None:
        """`connection` is set: sends what waited for it."""

    @abstractmethod
    def _on_over(self, error: MagnetarError) -> None:
        """Ends all waiting with this error. Called once."""

    @abstractmethod
    def _unregister(self, connection: Connection) -> None: ...

    @abstractmethod
    def _close_command(self, request_id: int) -> BaseCommand: ...

    @abstractmethod
    def on_frame(self, frame: Frame) -> None: ...

    async def open(self) -> None:
        self._task = asyncio.create_task(self._keep_attached())
        try:
            await asyncio.shield(self._opened)
        except BaseException:
            await self._stop(ClosedError(f"opening {self.topic} was given up"))
            raise

    async def _keep_attached(self) -> None:
        options = self._brokers.options
        backoff = Backoff(self._brokers.entropy.random, options.backoff_first_s, options.backoff_longest_s)
        until = self._loop.time() + options.open_timeout_s
        while True:
            try:
                await self._attach_once()
                await self._detached.wait()
                backoff.reset()
                until = self._loop.time() + options.reconnect_timeout_s
                error: MagnetarError = BrokerUnavailableError(f"no broker for {self.topic}")
            except MagnetarError as failed:
                error = failed
            pause_s = backoff.next_s()
            is_opening = not self._opened.done()
            if not is_worth_another_try(error, is_opening=is_opening) or self._loop.time() + pause_s > until:
                self._finish(error)
                return
            await asyncio.sleep(pause_s)

    async def _attach_once(self) -> None:
        connection = await self._brokers.owner_of(self.topic)
        self._detached.clear()
        try:
            await self._attach(connection)
            if connection.error is not None:
                raise connection.error
            if self._detached.is_set():
                raise BrokerUnavailableError(f"the broker closed {self.topic} at once")
        except BaseException as error:
            self._unregister(connection)  # Otherwise the end of this connection would detach it from another broker.
            if isinstance(error, BrokerTimeoutError | asyncio.CancelledError):
                self._close_and_forget(connection)  # It may be attached there anyway, and would be in the way.
            raise
        self.connection = connection
        self._attached.set()
        self._on_attached(connection)
        if not self._opened.done():
            self._opened.set_result(None)

    def on_connection_lost(self, error: MagnetarError) -> None:
        del error
        self._detach()

    def _detach(self) -> None:
        """The broker is lost or closed us: look the topic up again."""
        if self.connection is not None:
            self._unregister(self.connection)
        self.connection = None
        self._attached.clear()
        self._detached.set()

    def _finish(self, error: MagnetarError) -> None:
        if self.error is not None:
            return
        self.error = error
        if self.connection is not None:
            self._unregister(self.connection)
            self.connection = None
        if not self._opened.done():
            self._opened.set_exception(error)
            ignore_outcome(self._opened)  # The caller that waited for it may have left.
        self._attached.set()  # A caller that waits for it finds the error.
        self._on_over(error)

    async def _stop(self, error: MagnetarError) -> None:
        """Ends it without a command to the broker."""
        self._finish(error)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _close_and_forget(self, connection: Connection) -> None:
        """For a broker that may still have us attached. The answer is ignored."""
        connection.send((encode_command(self._close_command(self._brokers.next_id())),))

    async def _close_at_broker(self) -> None:
        """Closes it at the broker, if it is attached. The end of the connection would have the same effect."""
        connection = self.connection
        if connection is not None:
            request_id = self._brokers.next_id()
            try:
                await self._brokers.ask(connection, self._close_command(request_id), request_id)
            except MagnetarError:
                return

    async def _wait_attached(self) -> Connection:
        """Returns the connection to the topic's broker as soon as it is attached."""
        timeout_s = self._brokers.options.request_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                while self.connection is None:
                    self._check_open()
                    await self._attached.wait()
        except TimeoutError:
            raise BrokerUnavailableError(f"no broker was found for {self.topic} within {timeout_s:g} s") from None
        return self.connection

    def _check_open(self) -> None:
        if self.error is not None:
            raise self.error
