"""Compaction and trimming of topics on request."""

from __future__ import annotations

from typing import Any

from magnetar.admin.http.call import Call
from magnetar.admin.http.route import TOPIC, Route
from magnetar.broker.upkeep.chores import trim


async def begin_compaction(call: Call) -> None:
    for name in await call.topics():
        (await call.persistent(name)).compaction.begin()


async def compaction_status(call: Call) -> dict[str, Any]:
    topic = await call.persistent()
    return {"status": str(topic.compaction.status), "lastError": topic.compaction.last_error}


async def trim_topic(call: Call) -> None:
    for name in await call.topics():
        await trim(await call.persistent(name))


_ONE = f"/admin/v2/persistent/{TOPIC}"
ROUTES = [
    Route("PUT", f"{_ONE}/compaction", "Begin to compact a topic", begin_compaction),
    Route("GET", f"{_ONE}/compaction", "Get the outcome of the last compaction", compaction_status),
    Route("POST", f"{_ONE}/trim", "Delete ledgers that are not needed any more", trim_topic),
]
