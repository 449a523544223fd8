"""Publishing what jobs have staged (docs/staging.md). Paths that Pulsar does not have."""

from __future__ import annotations

from magnetar.admin.http.call import TOPIC, Call, Query, Reply, Route
from magnetar.admin.http.errors import BAD_REQUEST, RestError
from magnetar.errors import StillPublishingError
from magnetar.staging.publisher import SKIPS_PATH

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


async def note_skip(call: Call) -> None:
    """Counts a skipped run. Any broker will do: the counters of all brokers are added up."""
    call.context.broker.staged.note_skip(_owner(call), call.number("epoch"))


def _owner(call: Call) -> str:
    owner = call.query.get("owner")
    if not owner:
        raise RestError(BAD_REQUEST, "give the owner of the staged data: ?owner=…")
    return owner


async def _require_here(call: Call) -> None:
    """Requires the topic's own broker: no other may write to it."""
    await call.require_here()


_STAGED = f"/admin/v2/persistent/{TOPIC}/staged"
_OWNER = (Query("owner", "the identity of the sink that staged it, the same over all its restarts", "string"),)
ROUTES = [
    Route(
        "POST",
        f"{_STAGED}/{{epoch}}",
        "Publish what an intent names for this topic, once; 202 while it is being copied",
        publish,
        query=_OWNER,
    ),
    Route(
        "POST",
        f"{SKIPS_PATH}/{{epoch}}",
        "Count a run that wrote nothing because its epoch was committed before (magnetar_staging_skips_total)",
        note_skip,
        query=_OWNER,
    ),
    Route("DELETE", _STAGED, "Forget a sink that is not used any more", forget, query=_OWNER),
]
