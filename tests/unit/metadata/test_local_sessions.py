"""Sessions of a store in this process, when they are ended by order."""

from __future__ import annotations

import asyncio

from magnetar.config.metadata import MetadataConfig
from magnetar.metadata.memory import MemoryServer
from magnetar.metadata.store import CreateMode
from magnetar.runtime.system import SystemEntropy


async def test_what_is_asked_for_while_a_session_is_being_ended_belongs_to_the_next_one() -> None:
    server = MemoryServer(SystemEntropy(), MetadataConfig(url="memory:"))
    store, other = server.connect(), server.connect()
    old = store.session.id
    await asyncio.gather(server.expire(store), store.create("/mine", mode=CreateMode.EPHEMERAL))

    found = await other.get("/mine")
    assert found is not None
    assert found.owner == store.session.id != old
    await store.aclose()
    assert await other.get("/mine") is None
    await server.aclose()
