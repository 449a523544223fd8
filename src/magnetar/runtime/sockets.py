"""How much of what was written has not reached the other side yet.

Why:       a transport alone does not show that a slow peer reads. The kernel takes more from it only when a good part
           of its own buffer is free again, which may be a megabyte; until then the transport's size stands still.
Without:   a transport without a socket of the kernel (simulated, or inside the process) is asked alone.
"""

from __future__ import annotations

import asyncio
import fcntl
import sys
import termios
from typing import Final

_SIZE: Final = bytes(4)  # An int of the kernel's.


def undelivered_bytes(transport: asyncio.WriteTransport) -> int:
    """In the transport, and in the kernel as far as it tells: what the peer's side has not acknowledged."""
    return transport.get_write_buffer_size() + _in_kernel(transport)


def _in_kernel(transport: asyncio.WriteTransport) -> int:
    fileno = getattr(transport.get_extra_info("socket"), "fileno", None)
    if fileno is None:
        return 0
    try:
        return int.from_bytes(fcntl.ioctl(fileno(), termios.TIOCOUTQ, _SIZE), sys.byteorder)
    except (OSError, ValueError):  # Closed meanwhile, or a system whose sockets do not tell.
        return 0
