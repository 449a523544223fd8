"""Random use of a disk, then a power loss: whatever a finished sync covered exists.

Invariant: the model keeps only promises: for a file the bytes of the last sync and the deepest cut since, for a
           directory the names of the last `sync_dir` that nothing has touched since. It knows nothing of pages, order
           or chance.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.runtime.disk import File
from magnetar.sim.device import Crash, SimDevice
from magnetar.sim.disk import SimDisk
from tests.unit.sim.worlds import read_all

DIRECTORIES = ("", "d")
PATHS = ("a", "b", "d/a", "d/c")


@dataclass
class ModelFile:
    file: File
    stamp: bytes  # Its first bytes: no other file has them.
    content: bytes = b""
    promise: bytes = b""
    was_durable: bool = False  # Once under some name.
    is_gone: bool = False  # Removed or replaced.


@dataclass
class ModelDirectory:
    names: dict[str, ModelFile] = field(default_factory=dict)
    promised: dict[str, ModelFile] = field(default_factory=dict)

    def touch(self, name: str, file: ModelFile | None) -> None:
        self.promised.pop(name, None)
        self.names.pop(name, None)
        if file is not None:
            self.names[name] = file


class Model:
    def __init__(self, seed: int) -> None:
        self.device = SimDevice(seed=str(seed))
        self.disk = SimDisk(self.device)
        self.directories = {path: ModelDirectory() for path in DIRECTORIES}
        self.files: list[ModelFile] = []

    async def begin(self) -> None:
        await self.disk.make_dir("d")
        await self.disk.sync_dir()

    def find(self, path: str) -> ModelFile | None:
        directory, _, name = path.rpartition("/")
        return self.directories[directory].names.get(name)

    def touch(self, path: str, file: ModelFile | None) -> None:
        directory, _, name = path.rpartition("/")
        self.directories[directory].touch(name, file)

    async def do(self, operation: str, path: str, other: str, number: int) -> None:
        file = self.find(path)
        if operation == "sync_dir":
            await self._sync_dir(path.rpartition("/")[0])
        elif file is None:
            await self._create(path)
        elif operation == "remove":
            await self.disk.remove(path)
            file.is_gone = True
            self.touch(path, None)
        elif operation == "rename":
            await self._rename(path, other, file)
        else:
            await _change(file, operation, number)

    async def _create(self, path: str) -> None:
        made = ModelFile(await self.disk.open(path, create=True), b"file %d;" % len(self.files))
        await made.file.append_and_sync([made.stamp])
        made.content = made.promise = made.stamp
        self.files.append(made)
        self.touch(path, made)

    async def _sync_dir(self, directory: str) -> None:
        await self.disk.sync_dir(directory)
        self.directories[directory].promised = dict(self.directories[directory].names)
        for file in self.directories[directory].names.values():
            file.was_durable = True

    async def _rename(self, path: str, other: str, file: ModelFile) -> None:
        await self.disk.rename(path, other)
        if path != other:
            if (replaced := self.find(other)) is not None:
                replaced.is_gone = True
            self.touch(path, None)
            self.touch(other, file)

    def promises(self) -> dict[str, bytes]:
        return {
            f"{directory}/{name}".lstrip("/"): file.promise
            for directory, state in self.directories.items()
            for name, file in state.promised.items()
        }


async def _change(file: ModelFile, operation: str, number: int) -> None:
    data = bytes([number % 255 + 1]) * (number * 37)
    if operation == "sync":
        await file.file.sync()
        file.promise = file.content
    elif operation == "truncate":
        size = len(file.content) * number // 100
        await file.file.truncate(size)
        file.content = file.content[:size]
        file.promise = file.promise[:size]
    elif operation == "append":
        await file.file.append([data])
        file.content += data
    else:
        assert operation == "append_and_sync"
        await file.file.append_and_sync([data])
        file.content += data
        file.promise = file.content


OPERATIONS = st.tuples(
    st.sampled_from(["append", "append", "append_and_sync", "sync", "truncate", "rename", "remove", "sync_dir"]),
    st.sampled_from(PATHS),
    st.sampled_from(PATHS),
    st.integers(0, 100),
)


@settings(max_examples=300)
@given(seed=st.integers(0, 2**32), operations=st.lists(OPERATIONS, max_size=40))
def test_every_byte_and_name_covered_by_a_finished_sync_survives(
    seed: int, operations: list[tuple[str, str, str, int]]
) -> None:
    asyncio.run(_use_and_lose_power(seed, operations))


async def _use_and_lose_power(seed: int, operations: list[tuple[str, str, str, int]]) -> None:
    model = Model(seed)
    await model.begin()
    for operation in operations:
        await model.do(*operation)
    promises = model.promises()
    for path, promised in promises.items():
        assert model.device.durable(path) == promised

    model.device.crash(Crash.POWER_LOSS)
    found = await read_all(model.device)
    for path, promised in promises.items():
        assert found[path].startswith(promised)
    for file in model.files:
        if file.was_durable and not file.is_gone and file.promise.startswith(file.stamp):
            assert any(content.startswith(file.promise) for content in found.values())  # Under whatever name.
    model.device.crash(Crash.DROP_UNSYNCED)
    assert await read_all(model.device) == found


@settings(max_examples=100)
@given(seed=st.integers(0, 2**32), operations=st.lists(OPERATIONS, max_size=40))
def test_kill_leaves_exactly_what_was_seen_before(seed: int, operations: list[tuple[str, str, str, int]]) -> None:
    asyncio.run(_use_and_kill(seed, operations))


async def _use_and_kill(seed: int, operations: list[tuple[str, str, str, int]]) -> None:
    model = Model(seed)
    await model.begin()
    for operation in operations:
        await model.do(*operation)
    model.device.crash(Crash.KILL)
    seen = {path: file.content for path in PATHS if (file := model.find(path)) is not None}
    assert await read_all(model.device) == seen
