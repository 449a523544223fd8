"""/lookup/v2: which broker serves a topic, for clients that ask by HTTP."""

from __future__ import annotations

from typing import Any

from magnetar.admin.http.call import Call, Query, Reply, Route
from magnetar.admin.http.errors import PRECONDITION_FAILED, ElsewhereError, RestError
from magnetar.broker.front_end import PULSAR
from magnetar.errors import NotAllowedError
from magnetar.names import Domain, TopicName


def _topic(call: Call) -> TopicName:
    domain = call.name("domain")
    if domain not in list(Domain):
        raise RestError(PRECONDITION_FAILED, f"a topic is persistent or non-persistent, not {domain!r}")
    return call.namespace.topic(call.name("topic"), Domain(domain))


async def look_up(call: Call) -> dict[str, Any]:
    try:
        owner = await call.service.look_up(_topic(call), is_authoritative=call.flag("authoritative"))
        if owner.is_candidate:
            raise ElsewhereError.of(owner)
        url = owner.address.url_for(PULSAR, call.query.get("listenerName", ""))
    except NotAllowedError as error:
        raise RestError(PRECONDITION_FAILED, str(error)) from None
    return {"brokerUrl": url, "httpUrl": owner.address.http_url, "nativeUrl": url, "brokerUrlSsl": ""}


async def get_bundle(call: Call) -> Reply:
    topic = _topic(call)
    bundles = await call.service.resources.namespaces.bundles(topic.namespace)
    return Reply(str(bundles.of(topic)).encode(), "text/plain")


_ONE = "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}"
ROUTES = [
    Route(
        "GET",
        _ONE,
        "Find the broker that serves a topic",
        look_up,
        query=(
            Query("listenerName", "an advertised listener", "string"),
            Query("authoritative", "another broker has chosen this one to become the owner"),
        ),
    ),
    Route("GET", f"{_ONE}/bundle", "Get the bundle that a topic is in", get_bundle),
]
