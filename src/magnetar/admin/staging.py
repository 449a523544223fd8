"""Publishing what jobs have staged (docs/staging.md). Paths that Pulsar does not have."""

from __future__ import annotations

from magnetar.admin.call import Call, Reply
from magnetar.admin.errors import BAD_REQUEST, ElsewhereError, RestError
from magnetar.admin.route import TOPIC, Query, Route
from magnetar.errors import StillPublishingError

_ACCEPTED = 202


async def publish(call: Call) -> Reply | None:
    owner, epoch = _owner(call), call.number("epoch")
    await _require_here(call)
    try:
        await call.context.broker.staged.publish(call.topic, owner, epoch)
    except StillPublishingError:
        return Reply(status=_ACCEPTED)
    return None


async def forget(call: Call) -> None:
    owner = _owner(call)
    await _require_here(call)
    await call.context.broker.staged.forget(call.topic, owner)


def _owner(call: Call) -> str:
    owner = call.query.get("owner")
    if not owner:
        raise RestError(BAD_REQUEST, "say who has staged it: ?owner=…")
    return owner


async def _require_here(call: Call) -> None:
    """The topic's own broker does it: no other may write to it."""
    found = await call.service.look_up(call.topic)
    if not found.is_owner:
        raise ElsewhereError(found.http_url)


_STAGED = f"/admin/v2/persistent/{TOPIC}/staged"
_OWNER = Query("owner", "Who has staged it: the sink's identity, the same over all its restarts", "string")
ROUTES = [
    Route(
        "POST",
        f"{_STAGED}/{{epoch}}",
        "Publish what an intent names for this topic, once; 202 while it is being copied",
        publish,
        query=(_OWNER,),
    ),
    Route("DELETE", _STAGED, "Forget a sink that will not come again", forget, query=(_OWNER,)),
]
