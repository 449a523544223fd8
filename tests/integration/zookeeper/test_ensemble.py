from __future__ import annotations

import asyncio
from pathlib import Path

from magnetar.errors import MetadataUnavailableError, NodeExistsError, OutcomeUnknownError
from magnetar.testing.processes.zookeeper import ZooKeeperEnsemble
from magnetar.testing.waiting import until
from tests.integration.zookeeper.harness import connect_to


async def test_an_ensemble_that_loses_its_leader_goes_on_and_loses_nothing_acknowledged(tmp_path: Path) -> None:
    with ZooKeeperEnsemble(tmp_path) as ensemble:
        acknowledged: list[str] = []
        stop = asyncio.Event()
        async with await connect_to(
            f"{ensemble.url}/c", session_timeout_ms=8_000, operation_timeout_ms=20_000
        ) as store:

            async def write(lane: int) -> None:
                number = 0
                while not stop.is_set():
                    path = f"/n-{lane}-{number}"
                    try:
                        acknowledged.append(await store.create(path))
                    except (OutcomeUnknownError, MetadataUnavailableError):
                        continue  # The same again: who did it shows below.
                    except NodeExistsError:
                        acknowledged.append(path)
                    number += 1

            writers = [asyncio.ensure_future(write(lane)) for lane in range(10)]
            await until(lambda: len(acknowledged) > 100, "writes before the leader is lost", seconds=30)
            leader = await asyncio.to_thread(ensemble.leader)
            assert leader is not None
            leader.kill()
            before = len(acknowledged)
            await until(lambda: len(acknowledged) > before + 500, "writes after the leader is lost", seconds=60)
            stop.set()
            await asyncio.gather(*writers)
            await store.sync()
            names = await store.children("/")
            assert {path[1:] for path in acknowledged} <= set(names)
            assert store.session.generation == 0
        leader.start()  # It comes back as a follower of the new one.
        ensemble.wait_whole()
        assert len(ensemble.followers()) == 2
