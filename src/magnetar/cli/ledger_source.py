"""Where `magnetar ledger write` takes its entries from: lines of standard input, or made up.

Input:     read by a thread of its own, in pieces, at most `_PIECES_MAX` ahead: a terminal or a slow pipe must not keep
           the loop from serving bookies. The thread is a daemon, so a read that never returns does not keep the
           program from ending.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import AsyncIterator
from typing import Final

from magnetar.errors import EntryTooLargeError
from magnetar.wire.bookkeeper.frames import FRAME_BYTES_MAX

_PIECE_BYTES: Final = 64 * 1024
_PIECES_MAX: Final = 16
_STDIN: Final = 0


async def synthetic(count: int, size: int) -> AsyncIterator[bytes]:
    """So many entries of so many bytes. Each begins with its number, as far as that fits."""
    filling = b"." * size
    for number in range(count):
        yield (b"%d" % number + filling)[:size]


async def lines() -> AsyncIterator[bytes]:
    """Of standard input, without their ends. A last one without an end counts too."""
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[bytes] = asyncio.Queue(_PIECES_MAX)
    threading.Thread(target=_read_all, args=(loop, pieces), name="stdin", daemon=True).start()
    rest = b""
    while piece := await pieces.get():
        whole, end, rest = (rest + piece).rpartition(b"\n")
        if end:
            for line in whole.split(b"\n"):
                yield line
        if len(rest) > FRAME_BYTES_MAX:
            raise EntryTooLargeError(
                f"a line of the input is longer than {FRAME_BYTES_MAX} bytes: make smaller entries"
            )
    if rest:
        yield rest


def _read_all(loop: asyncio.AbstractEventLoop, pieces: asyncio.Queue[bytes]) -> None:
    while True:
        try:
            piece = os.read(_STDIN, _PIECE_BYTES)
        except OSError:  # Closed, or not to be read: there is no more.
            piece = b""
        putting = pieces.put(piece)
        try:
            asyncio.run_coroutine_threadsafe(putting, loop).result()
        except (RuntimeError, concurrent.futures.CancelledError):  # The loop has ended, and nobody wants more.
            putting.close()
            return
        if not piece:
            return
