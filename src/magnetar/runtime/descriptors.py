"""File descriptors: standard streams that are always open, a reserve that connections may not take, and unsent bytes.

Purpose:   supervisors and cron may close standard input, output or error. The next file or socket would then get the
           number 0, 1 or 2, prints would go into it, and libuv aborts the process when it closes such a number.
           A bookie that cannot open its next log must stop: without a reserve, any client that opens connections could
           take the last descriptor.
           A transport alone does not show that a slow peer reads: the kernel takes more from it only when a good part
           of its own buffer is free again, which may be a megabyte. `undelivered_bytes` asks the kernel.
Limits:    the kernel gives the lowest number that is free. A connection whose number is beyond the limit less the
           reserve shows that this many descriptors are in use, by any part of the process: it is closed at once.
           Nothing is counted, and no server of the process has to know the others.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import resource
import sys
import termios
from typing import Final

_SIZE: Final = bytes(4)  # An int of the kernel's.


def undelivered_bytes(transport: asyncio.WriteTransport) -> int:
    """Returns the bytes in the transport, and in the kernel if known, that the peer's side has not acknowledged."""
    return transport.get_write_buffer_size() + _in_kernel(transport)


def _in_kernel(transport: asyncio.WriteTransport) -> int:
    fileno = getattr(transport.get_extra_info("socket"), "fileno", None)
    if fileno is None:
        return 0
    try:
        return int.from_bytes(fcntl.ioctl(fileno(), termios.TIOCOUTQ, _SIZE), sys.byteorder)
    except (OSError, ValueError):  # It was closed since, or the system does not report this.
        return 0


log = logging.getLogger(__name__)

RESERVED_MAX: Final = 512  # RocksDB keeps up to 256 tables open, and logs, journals and libraries need some dozens.
_WANTED_MAX: Final = 2**20  # Some systems have no limit at all, and slow down with the number.


def open_missing_streams() -> None:
    """Opens the null device for each closed standard stream. To be called before anything else is opened."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # It gets the lowest number that is free: this one.
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode))


def raise_limit() -> None:
    """Raises the limit as far as the system allows: its default of 1,024 is for programs with few clients."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED_MAX if hard == resource.RLIM_INFINITY else min(hard, _WANTED_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as error:  # Some systems have a lower limit that they do not show.
            log.warning("the limit of file descriptors stays as it is", extra={"limit": soft, "why": str(error)})


def takes_from_reserve(transport: asyncio.BaseTransport) -> bool:
    """Reports whether a connection just accepted is one too many. Never for one without a socket of the kernel."""
    fileno = getattr(transport.get_extra_info("socket"), "fileno", None)
    if fileno is None:
        return False
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit != resource.RLIM_INFINITY and fileno() >= limit - min(RESERVED_MAX, limit // 2)


def note_refused(count: int, what: str) -> None:
    """Logs the first connection that was closed for that reason, then the second, the fourth, …"""
    if count & (count - 1) == 0:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        log.warning(
            "connections are closed: the remaining file descriptors are for the process's own files; raise the "
            "limit (ulimit -n), or let clients share connections",
            extra={"server": what, "closed": count, "limit": limit},
        )
