"""Lives of a journal on a simulated device: open, submit, crash, open again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from magnetar.config.storage import JournalConfig
from magnetar.errors import JournalFailedError
from magnetar.runtime.disk import Disk
from magnetar.sim.device import Crash, SimDevice
from magnetar.sim.disk import SimDisk
from magnetar.sim.machine import SimEntropy, WallClock
from magnetar.storage.journal.format import JournalRecord, RecordKind
from magnetar.storage.journal.journal import Journal

SMALL = JournalConfig(file_bytes_max=4_096, group_bytes_max=512)

Replay = list[tuple[int, bytes]]


class Life:
    """One process with a journal: what it replayed, what was called durable, how it failed."""

    def __init__(
        self,
        device: SimDevice,
        *,
        config: JournalConfig = SMALL,
        mark: int = 0,
        seed: str = "0",
        is_begun: bool = False,
    ) -> None:
        self.device = device
        self.replayed: Replay = []
        self.groups: list[list[object]] = []
        self.failures: list[JournalFailedError] = []
        self.on_durable: Callable[[list[object]], None] = self.groups.append
        self.disk: Disk = SimDisk(device)
        self._config = config
        self._mark = mark
        self._is_begun = is_begun
        self._entropy = SimEntropy(seed, WallClock())

    async def open(self) -> Journal:
        self.journal = await Journal.open(
            self.disk,
            self._config,
            self._mark,
            self._replay,
            is_begun=self._is_begun,
            entropy=self._entropy,
            on_durable=lambda tokens: self.on_durable(tokens),
            on_failed=self.failures.append,
        )
        return self.journal

    @property
    def durable(self) -> list[object]:
        return [token for group in self.groups for token in group]

    def submit(self, *bodies: bytes) -> list[int]:
        return [self.journal.submit(RecordKind.ADDS, [body], body) for body in bodies]

    async def write(self, *bodies: bytes) -> None:
        """Each in a group of its own."""
        for body in bodies:
            self.submit(body)
            await self.wait_durable(body)

    async def wait_durable(self, token: object) -> None:
        await wait_until(lambda: token in self.durable)

    async def wait_prepared(self) -> None:
        await wait_until(lambda: self.journal._following.done())

    async def aclose(self) -> None:
        await self.journal.aclose()
        await self.disk.aclose()

    async def crash(self, kind: Crash) -> None:
        """Ends the process where it is; then its remains, so that no task is left over."""
        self.device.crash(kind)
        self.device.release_dead()
        await bury()
        if hasattr(self, "journal"):  # Else it was still being opened.
            await asyncio.gather(self.journal._writer, self.journal._following, return_exceptions=True)

    def _replay(self, record: JournalRecord) -> None:
        self.replayed.append((record.sequence, bytes(record.body)))


async def live(
    device: SimDevice, *, config: JournalConfig = SMALL, mark: int = 0, seed: str = "0", is_begun: bool = False
) -> Life:
    life = Life(device, config=config, mark=mark, seed=seed, is_begun=is_begun)
    await life.open()
    return life


async def bury() -> None:
    """Ends the tasks of dead lives: their disks are inert, so nothing they still do has an effect."""
    dead = [task for task in asyncio.all_tasks() if task.get_name().startswith("journal-")]
    for task in dead:
        task.cancel()
    await asyncio.gather(*dead, return_exceptions=True)


async def replay_of(device: SimDevice, mark: int = 0, seed: str = "reader", *, is_begun: bool = False) -> Replay:
    """Opens the journal, closes it, and says what it replayed."""
    life = await live(device, mark=mark, seed=seed, is_begun=is_begun)
    await life.aclose()
    return life.replayed


async def wait_until(condition: Callable[[], bool], turns: int = 10_000) -> None:
    for _ in range(turns):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not happen")


def numbered(*bodies: bytes, first: int = 1) -> Replay:
    return list(enumerate(bodies, first))


def files(device: SimDevice) -> dict[str, bytes]:
    """Path → content of every journal file."""
    found = {image.path: bytes(image.cache) for image in device.tree.files()}
    return {path: found[path] for path in sorted(found) if path.endswith(".journal")}
