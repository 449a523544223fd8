"""Ledger directories: where a bookie's entry logs are. One or several, best on a device each.

Order:     a log lives in one directory; the next one is made in the next. A full directory is skipped in its turn.
           The location index is in the first one for all of them: it is small and can be rebuilt from the logs.
Threads:   each directory has two disks, with a thread each: a read does not wait for a flush.
"""

from __future__ import annotations

from collections.abc import Sequence

from magnetar.errors import DiskError, LogDamagedError
from magnetar.runtime.disk import Disk
from magnetar.runtime.runtime import Runtime
from magnetar.storage.entry_log.format import LOGS, log_id_of, log_path


class LedgerDir:
    def __init__(self, root: str, writing: Disk, reading: Disk) -> None:
        self.root = root
        self.writing = writing
        self.reading = reading


class LedgerDirs:
    """Which logs exist, and in which directory each one is."""

    def __init__(self, dirs: Sequence[LedgerDir]) -> None:
        self.dirs = dirs
        self._dir_of: dict[int, LedgerDir] = {}
        self._next_log_id = 0

    @staticmethod
    async def open(runtime: Runtime, roots: Sequence[str]) -> LedgerDirs:
        """Makes missing directories, and notes the logs that exist."""
        assert roots, "a bookie has at least one ledger directory"
        dirs: list[LedgerDir] = []
        opened = LedgerDirs(dirs)
        try:
            for number, root in enumerate(roots):
                writing = runtime.disk(root, name=f"ledgers-{number}-write")
                dirs.append(LedgerDir(root, writing, runtime.disk(root, name=f"ledgers-{number}-read")))
                await opened._load(dirs[-1])
        except BaseException:
            await opened.aclose()
            raise
        return opened

    async def _load(self, directory: LedgerDir) -> None:
        await directory.writing.make_dir(LOGS)
        await directory.writing.sync_dir("")
        for name in await directory.writing.list(LOGS):
            log_id = log_id_of(name)
            if log_id is None:
                raise DiskError(f"{directory.root}/{LOGS}/{name} is not an entry log: move it somewhere else")
            if log_id in self._dir_of:
                raise DiskError(
                    f"{log_path(log_id)} is in {self._dir_of[log_id].root} and in {directory.root}: "
                    "these are not the directories of one bookie, or one was copied"
                )
            self._dir_of[log_id] = directory
            self.note_log(log_id)

    def log_ids(self) -> list[int]:
        return sorted(self._dir_of)

    def dir_of(self, log_id: int) -> LedgerDir:
        directory = self._dir_of.get(log_id)
        if directory is None:
            raise LogDamagedError(
                f"{log_path(log_id)} is in none of the ledger directories: is one of them missing or not mounted?"
            )
        return directory

    def note_log(self, log_id: int) -> None:
        """Notes that a log had this id. If it is lost, no other log gets the id: that would hide the loss."""
        self._next_log_id = max(self._next_log_id, log_id + 1)

    def new_log(self) -> tuple[int, LedgerDir]:
        """Returns an id that was never used, so an index that lags cannot point into a later file."""
        log_id = self._next_log_id
        self._next_log_id += 1
        directory = self.dirs[log_id % len(self.dirs)]
        self._dir_of[log_id] = directory
        return log_id, directory

    def forget(self, log_id: int) -> None:
        self._dir_of.pop(log_id, None)

    def remember(self, log_id: int, directory: LedgerDir) -> None:
        """Takes back `forget`: the log could not be removed."""
        self._dir_of[log_id] = directory

    async def aclose(self) -> None:
        for directory in self.dirs:
            await directory.writing.aclose()
            await directory.reading.aclose()
