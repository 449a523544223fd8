"""From a request to the value of a policy as it is stored. Any other value is refused here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from magnetar.admin.http.call import Call
from magnetar.admin.http.errors import refusing_malformed
from magnetar.broker.policies.kinds import Kind, Sent
from magnetar.broker.policies.rows import Place


def parsed(call: Call, place: Place, kind: Kind[Any]) -> Any:
    """Returns what the request sets the policy to. RestError or InvalidPolicyError if that is no value of the kind."""
    if place.is_in_query and place.path in call.query:
        sent: Any = call.query_number(place.path, 0)
    else:
        sent = _SENT[kind.sent](call)
    with refusing_malformed():
        return kind.accepted(sent, call.service.config)


def body_of(place: Place, kind: Kind[Any]) -> str:
    """Returns what a client sends, in words for OpenAPI."""
    return "" if place.is_in_query else kind.body


def _integer_or_null(call: Call) -> int | None:
    return None if call.json() is None else call.json_integer()


def _name(call: Call) -> Any:
    """Reads a name, sent as a JSON string or as plain text."""
    is_json = call.body.lstrip()[:1] == b'"'
    return call.json() if is_json else call.body.decode("utf-8", "replace").strip()


_SENT: Final[Mapping[Sent, Callable[[Call], Any]]] = {
    Sent.INTEGER: Call.json_integer,
    Sent.INTEGER_OR_NULL: _integer_or_null,
    Sent.FLAG: Call.json_flag,
    Sent.NAME: _name,
    Sent.NAMES: Call.json_names,
    Sent.OBJECT: Call.json_object,
    Sent.NOTHING: lambda _: True,
}
