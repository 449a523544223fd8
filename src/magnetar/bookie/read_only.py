"""The reasons why a bookie accepts no entries, and the operator's reason kept over a restart.

Invariant: a full disk (disk_watch.py), an operator, and the configuration are reasons. The bookie is read-only as long
           as any of them holds; none undoes another. Entries of recovery and re-replication are accepted while the
           disks have their reserve.
Format:    only the operator's reason is kept: BOOKIE_STATUS in every ledger directory, `1,READ_ONLY,milliseconds,true`
           as Apache writes it (its persistBookieStatusEnabled; here always on). The newest counts, so one that could
           not be written is outvoted.
Order:     a running bookie reads the status with the period of the disk watch, and never writes it: an operator needs
           no lock to write. Disks are measured anew on every start.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from magnetar.bookie.directories import STATUS_FILE, BookieDirectories
from magnetar.errors import DiskError
from magnetar.runtime.runtime import Entropy

log = logging.getLogger(__name__)

_LAYOUT_VERSION: Final = "1"
_MODES: Final = {"READ_ONLY": True, "READ_WRITE": False}


class ReadOnlyReason(enum.Enum):
    DISK_FULL = "disk full"
    OPERATOR = "operator"
    CONFIGURED = "configured"


class ReadOnlySwitch:
    """The state that the request path asks for before every run of adds. One listener gets every change."""

    def __init__(self) -> None:
        self.is_read_only = False
        self.has_reserve = True
        self._reasons: dict[ReadOnlyReason, None] = {}
        self._listener: Callable[[bool], None] | None = None

    @property
    def reasons(self) -> tuple[ReadOnlyReason, ...]:
        return tuple(reason for reason in ReadOnlyReason if reason in self._reasons)

    @property
    def takes_high_priority(self) -> bool:
        return not self.is_read_only or self.has_reserve

    def listen(self, listener: Callable[[bool], None]) -> None:
        assert self._listener is None, "one listener: the registration"
        self._listener = listener

    def set(self, reason: ReadOnlyReason, holds: bool) -> None:
        if holds:
            self._reasons[reason] = None
        else:
            self._reasons.pop(reason, None)
        if self.is_read_only == bool(self._reasons):
            return
        self.is_read_only = bool(self._reasons)
        if self.is_read_only:
            log.warning("read-only from now on: %s", reason.value)
        else:
            log.info("writable again")
        if self._listener is not None:
            self._listener(self.is_read_only)


@dataclass(frozen=True, slots=True)
class Status:
    is_read_only: bool
    updated_ms: int
    by_operator: bool


def encode_status(status: Status) -> bytes:
    mode = "READ_ONLY" if status.is_read_only else "READ_WRITE"
    return f"{_LAYOUT_VERSION},{mode},{status.updated_ms},{str(status.by_operator).lower()}\n".encode()


def decode_status(content: bytes) -> Status | None:
    """Returns None if it is not a status: it is then treated as missing, as in Apache."""
    line = content.decode("ascii", "replace").partition("\n")[0]
    parts = [part.strip() for part in line.split(",")]
    if len(parts) not in (3, 4) or parts[0] != _LAYOUT_VERSION or parts[1] not in _MODES:
        return None
    if not (parts[2].isdigit() and len(parts[2]) <= 19):
        return None
    return Status(_MODES[parts[1]], int(parts[2]), len(parts) == 3 or parts[3].lower() == "true")


async def read_operator_status(directories: BookieDirectories) -> bool:
    """Reports whether an operator has made this bookie read-only."""
    newest = await _newest(directories)
    return newest is not None and newest.is_read_only and newest.by_operator


async def write_operator_status(directories: BookieDirectories, entropy: Entropy, *, is_read_only: bool) -> None:
    """Returns when it will hold after a restart, too. On a full disk one directory that takes it is enough."""
    newest = await _newest(directories)
    # The wall clock may have gone back; the last write must still be the newest.
    updated_ms = max(entropy.wall_ms(), 0 if newest is None else newest.updated_ms + 1)
    content = encode_status(Status(is_read_only, updated_ms, by_operator=is_read_only))
    errors: list[DiskError] = []
    for directory in directories.ledger:
        try:
            await directory.write(STATUS_FILE, content)
        except DiskError as error:
            log.warning("the status could not be kept in %s: %s", directory.path, error)
            errors.append(error)
    if len(errors) == len(directories.ledger):
        raise errors[0]


async def _newest(directories: BookieDirectories) -> Status | None:
    found = []
    for directory in directories.ledger:
        content = await directory.read(STATUS_FILE)
        status = None if content is None else decode_status(content)
        if status is not None:
            found.append(status)
        elif content is not None:
            log.warning("%s/%s is not a status and is ignored: %r", directory.path, STATUS_FILE, content[:40])
    return max(found, key=lambda status: status.updated_ms, default=None)
