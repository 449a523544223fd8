"""Message ids in Pulsar's JSON, and positions from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from magnetar.admin.call import Call
from magnetar.admin.errors import BAD_REQUEST, RestError
from magnetar.topic.position import EARLIEST, LATEST, Position

_LONG_MAX = 2**63 - 1


def message_id_json(
    position: Position, partition: int = -1, batch_index: int = -1, batch_size: int = 0
) -> dict[str, Any]:
    return {
        "ledgerId": position.ledger_id,
        "entryId": position.entry_id,
        "partitionIndex": partition,
        "batchIndex": batch_index,
        "batchSize": batch_size,
    }


@dataclass(frozen=True, slots=True)
class GivenPlace:
    """What a request's body says: a message id, whether to begin behind it, and properties of a subscription."""

    position: Position
    batch_index: int = -1
    is_excluded: bool = False
    properties: dict[str, str] = field(default_factory=dict)


def given_place(call: Call) -> GivenPlace:
    """Also "earliest" and "latest"; latest without a body."""
    body = call.json()
    if body is None:
        return GivenPlace(LATEST)
    if isinstance(body, str):
        return GivenPlace(_named(body))
    if not isinstance(body, dict):
        raise RestError(BAD_REQUEST, "the body must be a message id: an object with ledgerId and entryId")
    properties = body.get("properties") or {}
    if not isinstance(properties, dict):
        raise RestError(BAD_REQUEST, "properties must be an object of strings")
    return GivenPlace(
        _clamped(Position(_number(body, "ledgerId"), _number(body, "entryId"))),
        _number(body, "batchIndex", -1),
        bool(body.get("isExcluded") or body.get("excluded")),
        {str(name): str(value) for name, value in properties.items()},
    )


def _named(text: str) -> Position:
    known = {"earliest": EARLIEST, "latest": LATEST}
    if text in known:
        return known[text]
    ledger, _, entry = text.partition(":")
    try:
        return Position(int(ledger), int(entry))
    except ValueError:
        raise RestError(BAD_REQUEST, f"{text!r} is not earliest, latest or ledger:entry") from None


def _clamped(position: Position) -> Position:
    if position.ledger_id < 0:
        return EARLIEST
    return LATEST if position.ledger_id == _LONG_MAX else position


def _number(body: dict[str, Any], name: str, default: int | None = None) -> int:
    found = body.get(name, default)
    if isinstance(found, bool) or not isinstance(found, int):
        raise RestError(BAD_REQUEST, f"{name} must be an integer, not {found!r}")
    return found
