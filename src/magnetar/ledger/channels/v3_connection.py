"""The v3 connection of a channel, for the requests that v2 lacks. Answers are linked by number.

Read next: bookie_channel.py
"""

from __future__ import annotations

from typing import Final, Protocol

from magnetar.errors import MagnetarError, RemoteProtocolError
from magnetar.ids import BookieId
from magnetar.ledger.channels.connection import Connection
from magnetar.ledger.channels.pending_requests import Pending, PendingRequest
from magnetar.wire.bookkeeper import messages as m
from magnetar.wire.bookkeeper.client import decode_responses

_ANSWERS: Final[dict[type[m.Request], type[m.Response]]] = {
    m.AddEntry: m.AddResponse,
    m.ReadEntry: m.ReadResponse,
    m.ReadLac: m.ReadLacResponse,
    m.WriteLac: m.WriteLacResponse,
    m.ForceLedger: m.ForceLedgerResponse,
    m.GetBookieInfo: m.GetBookieInfoResponse,
    m.ListEntries: m.ListEntriesResponse,
    m.Auth: m.AuthResponse,
    m.StartTls: m.StartTlsResponse,
}


class V3Owner(Protocol):
    """The channel, as its v3 connection sees it."""

    def on_answered(self, pending: Pending, answers: int) -> None: ...
    def on_room(self) -> None: ...
    def on_connection_lost(self, error: MagnetarError) -> None: ...


class V3Connection:
    def __init__(self, bookie_id: BookieId, owner: V3Owner, *, unsent_bytes_max: int) -> None:
        self.link = Connection(bookie_id, self, unsent_bytes_max=unsent_bytes_max)
        self._owner = owner
        self._requests: dict[int, PendingRequest] = {}
        self._last_number = 0

    @property
    def is_writable(self) -> bool:
        return self.link.is_writable

    def ask(self, frame: bytes, pending: PendingRequest) -> None:
        """Sends the frame. Numbers only grow."""
        assert pending.number > self._last_number
        self._last_number = pending.number
        self._requests[pending.number] = pending
        self.link.send((frame,))

    def give_up(self, pending: PendingRequest) -> None:
        self._requests.pop(pending.number, None)

    def unanswered(self) -> list[Pending]:
        return list(self._requests.values())

    def on_received(self, buffer: bytearray, start: int, end: int, *, is_ours: bool) -> int:
        del is_ours  # Protobuf copies.
        responses, rest = decode_responses(buffer, start, end, m.V3)
        for response in responses:
            if self.link.error is None:
                self._on_response(response)
        return rest

    def _on_response(self, response: m.AnyResponse) -> None:
        number = response.txn_id
        pending = self._requests.get(number)
        if pending is None:
            if not 0 < number <= self._last_number:
                raise RemoteProtocolError(f"an answer to request {number}, which was not asked for")
            return  # A late answer, whose caller has left.
        check_answer(pending.request, response)
        del self._requests[number]
        self._owner.on_answered(pending, 1)
        pending.complete(response)

    def on_lost(self, error: MagnetarError) -> None:
        self._owner.on_connection_lost(error)

    def on_writable(self) -> None:
        """Concerns writers only: other requests were refused, and do not wait."""
        self._owner.on_room()


def check_answer(request: m.AnyRequest, response: m.AnyResponse) -> None:
    """Raises RemoteProtocolError if the response cannot be the answer to the request."""
    expected = _ANSWERS[type(request)]
    if not isinstance(response, (expected, m.BareResponse)):
        raise RemoteProtocolError(f"{type(response).__name__} in answer to {type(request).__name__}")
    asked, told = getattr(request, "ledger_id", None), getattr(response, "ledger_id", None)
    if told is not None and told != asked:
        raise RemoteProtocolError(f"an answer about ledger {told} to a request about ledger {asked}")
