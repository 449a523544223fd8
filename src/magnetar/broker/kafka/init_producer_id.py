"""InitProducerId: an id for an idempotent producer. A transactional one is refused: there are no transactions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from magnetar.broker.kafka.session import Session, refusal_of
from magnetar.errors import MagnetarError
from magnetar.wire.kafka.codec import Value
from magnetar.wire.kafka.error_codes import ErrorCode
from magnetar.wire.kafka.frames import RequestHead

_NO_ID: Final = -1


async def handle(session: Session, head: RequestHead, request: Value) -> Mapping[str, Any]:
    """A producer that asks again, because its sequence is broken, gets another id: nothing is known of that one."""
    del head
    if request["transactional_id"] is not None:
        return _refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    try:
        return {"producer_id": await session.shared.producer_ids.take(), "producer_epoch": 0}
    except MagnetarError as error:
        code, _ = refusal_of(error)
        return _refused(code)


def _refused(code: int) -> Mapping[str, Any]:
    return {"error_code": code, "producer_id": _NO_ID, "producer_epoch": _NO_ID}
