"""Answers that may be too long for a frame, and what is sent then.

Invariant: a request that was taken gets an answer. One that no frame can carry must not cost the connection, and with
           it every other request in flight there.
Shorter:   an entry that was accepted fits the answer to any read (`ENTRY_BYTES_MAX`), but maybe not with all that is
           sent along when there is room. So that is left out first: a reader can do without it.
"""

from __future__ import annotations

import dataclasses
import logging
import struct

from magnetar.bookie.ledgers import NO_LAC
from magnetar.errors import LocalProtocolError
from magnetar.runtime.disk import Buffer
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.messages import AnyRequest, AnyResponse, ReadLacResponse, ReadResponse, failure
from magnetar.wire.bookkeeper.server import response_parts

log = logging.getLogger(__name__)

LAC_OF_ENTRY = struct.Struct(">16xq")
"""A stored entry begins so: ledger id, entry id, LAC."""
_EXPLICIT_LAC = struct.Struct(">8xq")  # What a client sends as its LAC begins so: ledger id, LAC.


def sendable_parts(request: AnyRequest, answer: AnyResponse) -> list[Buffer]:
    """The answer as it is, or without what can be left out, or else a failure."""
    try:
        return response_parts(answer)
    except LocalProtocolError:
        return _shorter_parts(request, answer)


def _shorter_parts(request: AnyRequest, answer: AnyResponse) -> list[Buffer]:
    try:
        return response_parts(_shortened(answer))
    except LocalProtocolError as error:
        what = {"request": type(request).__name__, "why": str(error)}
        log.error("an answer cannot be sent, the client is told of a failure", extra=what)
        return response_parts(failure(request, Code.EIO))


def _shortened(answer: AnyResponse) -> AnyResponse:
    match answer:
        case ReadResponse():
            return dataclasses.replace(answer, max_lac=None, lac_updated_ms=None)
        case ReadLacResponse(lac_body=bytes() as explicit, last_entry_body=last) if last is not None:
            # Both tell a LAC, and the client takes the greater.
            (lac,) = LAC_OF_ENTRY.unpack_from(last)
            if lac_told_by(explicit) < lac:
                return dataclasses.replace(answer, lac_body=None)
            return dataclasses.replace(answer, last_entry_body=None)
        case _:
            return answer


def lac_told_by(body: bytes) -> int:
    """An explicit LAC that is too short to tell any is below all others."""
    return _EXPLICIT_LAC.unpack_from(body)[0] if len(body) >= _EXPLICIT_LAC.size else NO_LAC
