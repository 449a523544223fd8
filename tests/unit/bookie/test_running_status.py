"""An operator's word reaches a bookie that runs: seen by its writers, and in the metadata."""

from __future__ import annotations

from magnetar.bookie.directories import BookieDirectories, Directory, DirectoryLayout
from magnetar.bookie.read_only import write_operator_status
from magnetar.sim.machine import SimEntropy, SimRuntime
from magnetar.testing.waiting import until
from magnetar.wire.bookkeeper.codes import Code
from tests.unit.bookie.sim_node import SimNode
from tests.unit.bookie.test_limits import metric, on_a_node, writer, written


async def operator_says(node: SimNode, *, is_read_only: bool) -> None:
    """Beside the bookie, which holds the locks: the status is written whole or not at all, and needs none."""
    runtime = node.bookie._runtime
    assert isinstance(runtime, SimRuntime)
    layout = DirectoryLayout.from_config(node.config.bookie, base="/")
    directories = BookieDirectories(layout)
    directories.all = [Directory(path, runtime.disk(path, name="operator")) for path in layout.all]
    await write_operator_status(directories, SimEntropy("operator"), is_read_only=is_read_only)
    await directories.aclose()


def test_a_running_bookie_turns_read_only_and_back_when_an_operator_says_so() -> None:
    async def test(node: SimNode) -> None:
        await written(node, 1, 5)
        await operator_says(node, is_read_only=True)
        await until(lambda: node.bookie.switch.is_read_only, "read-only", seconds=60)
        assert metric(node.bookie, "read_only") == 1
        assert node.bookie.health().detail["reasons"] == ["operator"]
        load = await writer(node, 2)
        load.begin(1)
        load.finish()
        await load.wait_for(lambda load: not load.in_flight)
        assert load.refused == [(0, Code.EREADONLY)]
        await load.aclose()
        registration = node.bookie._registration
        assert registration is not None
        await registration.wait_registered()
        assert registration.is_read_only
        await operator_says(node, is_read_only=False)
        await until(lambda: not node.bookie.switch.is_read_only, "writable", seconds=60)
        await written(node, 3, 5)

    on_a_node(test)
