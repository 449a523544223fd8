"""A bookie that was killed serves before it is listed anew: what it takes and has replayed meanwhile is flushed."""

from __future__ import annotations

import asyncio

from magnetar.bookie.bookie import Bookie
from magnetar.sim.device import Crash
from tests.unit.bookie.one_node import on_a_node, slow, writer
from tests.unit.bookie.sim_node import SimNode
from workloads.bookie_load import BookieLoad

_LOOK_S = 0.001  # Virtual.
_LIVES = 8


async def killed_under_load(node: SimNode) -> int:
    """Returns its port. The session of the killed process continues for a while."""
    port = node.bookie.port
    load = await writer(node, 1)
    load.begin(10)
    await load.wait_for(lambda load: len(load.acknowledged) > 50)
    node.crash(Crash.KILL)
    return port


async def first_client(port: int, ledger_id: int) -> BookieLoad:
    """Connects as soon as the port listens, which is before the bookie is registered."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await BookieLoad.connect("127.0.0.1", port, ledger_id)
            except ConnectionRefusedError:
                await asyncio.sleep(_LOOK_S)


def test_what_is_added_before_the_bookie_is_registered_is_flushed() -> None:
    async def test(node: SimNode) -> None:
        port = await killed_under_load(node)
        starting = asyncio.ensure_future(node.start())
        load = await first_client(port, 2)
        load.begin(10)
        await load.wait_for(lambda load: len(load.acknowledged) > 100 or bool(load.refused))
        assert not starting.done(), "the old session is still waited out"
        assert load.refused == []
        load.finish()
        bookie = await starting
        assert bookie._storage.flushes > 0

    on_a_node(test, storage={"write_cache_bytes_max": 4_096, "max_throttle_ms": 100})


def test_a_bookie_that_is_killed_again_and_again_does_not_replay_more_each_time() -> None:
    """Its flushes are slower than its lives are long: what was replayed is flushed before more is taken."""

    async def test(node: SimNode) -> None:
        port = await killed_under_load(node)
        replayed: list[int] = []
        starting: list[asyncio.Future[Bookie]] = []  # Not awaited: they stand still with all the rest.
        for life in range(_LIVES):
            slow(*node.ledgers, seconds=0.0)
            starting.append(asyncio.ensure_future(node.start()))
            load = await first_client(port, 10 + life)
            slow(*node.ledgers, seconds=5.0)
            load.begin(10)
            await load.wait_for(lambda load: len(load.acknowledged) > 30 or bool(load.refused))
            assert load.refused == []
            replayed.append(journal_bytes(node))
            node.crash(Crash.KILL)
        slow(*node.ledgers, seconds=0.0)
        assert max(replayed[2:]) <= 2 * max(replayed[:2])

    on_a_node(test, storage={"write_cache_bytes_max": 4_096})


def journal_bytes(node: SimNode) -> int:
    """Of records that are still needed: a file that is not is given back, or written again."""
    return sum(len(node.journal.tree.file(name).sure()) for name in node.journal_names())
