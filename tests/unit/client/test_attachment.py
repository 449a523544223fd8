"""Where a producer or consumer is registered: with one connection at a time."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from magnetar.client.attachment import Attachment
from magnetar.client.connection import Connection
from magnetar.client.values import ClientOptions
from magnetar.errors import BrokerUnavailableError, ClosedError, MagnetarError
from magnetar.wire.pulsar.frames import Frame
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand


class Connections:
    """A topic that is served at one connection after the other."""

    def __init__(self, *connections: Any) -> None:
        self.options = ClientOptions(backoff_first_s=0.001, backoff_longest_s=0.001)
        self.entropy = SimpleNamespace(random=Random("0"))
        self._left = list(connections)

    def next_id(self) -> int:
        return 1

    async def owner_of(self, _topic: str) -> Any:
        return self._left.pop(0)


class Guest(Attachment):
    """Sent away, or cut off, while it is being taken by the first."""

    def __init__(self, connections: Connections, ends_it: str) -> None:
        super().__init__(cast("Any", connections), "t")
        self.registered: list[Any] = []
        self._ends_it = ends_it

    async def _attach(self, connection: Connection) -> None:
        self.registered.append(connection)
        if len(self.registered) == 1 and self._ends_it == "sent away":
            self._detach()
        elif len(self.registered) == 1 and self._ends_it == "cut off":
            connection.error = BrokerUnavailableError("cut off")
        self._ends_it = ""

    def _unregister(self, connection: Connection) -> None:
        if connection in self.registered:
            self.registered.remove(connection)

    def _on_attached(self, connection: Connection) -> None: ...
    def _on_over(self, error: MagnetarError) -> None: ...
    def on_frame(self, frame: Frame) -> None: ...
    def _close_command(self, request_id: int) -> BaseCommand:
        raise AssertionError(f"nobody asks for {request_id}")


@pytest.mark.parametrize("ends_it", ["sent away", "cut off"])
async def test_who_is_not_kept_by_one_broker_does_not_hear_of_it_any_more_when_another_has_taken_him(
    ends_it: str,
) -> None:
    first, second = SimpleNamespace(error=None), SimpleNamespace(error=None)
    guest = Guest(Connections(first, second), ends_it)
    await guest.open()
    assert guest.registered == [second]
    await guest._stop(ClosedError("the end"))
