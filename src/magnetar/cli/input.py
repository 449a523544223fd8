"""The input of `magnetar ledger write` and `magnetar produce`: lines of standard input, or made up.

Threads:   Standard input is read by a thread of its own: a terminal or a slow pipe must not keep the loop from serving
           bookies. The thread is a daemon, so a read that never returns does not keep the program from ending.
Limits:    It reads in pieces, at most `_PIECES_MAX` ahead.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import AsyncIterator
from typing import Final

from magnetar.errors import LineTooLongError

_PIECE_BYTES: Final = 64 * 1024
_PIECES_MAX: Final = 16
_STDIN: Final = 0


async def synthetic(count: int, size: int) -> AsyncIterator[bytes]:
    """Yields `count` entries of `size` bytes. Each begins with its number, as far as that fits."""
    filling = b"." * size
    for number in range(count):
        yield (b"%d" % number + filling)[:size]


async def lines(bytes_max: int) -> AsyncIterator[bytes]:
    """Yields the lines of standard input, without their ends. A last one without an end counts too. Raises
    LineTooLongError at the first line that is longer than `bytes_max`."""
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[bytes] = asyncio.Queue(_PIECES_MAX)
    threading.Thread(target=_read_all, args=(loop, pieces), name="stdin", daemon=True).start()
    number = 1
    rest: list[bytes] = []  # Pieces of a line whose end has not come yet.
    rest_bytes = 0
    while piece := await pieces.get():
        first, *others = piece.split(b"\n")
        rest.append(first)
        rest_bytes += len(first)
        if rest_bytes > bytes_max:
            raise LineTooLongError(number, bytes_max)
        if others:
            yield b"".join(rest)
            for line in others[:-1]:
                yield line
            number += len(others)
            rest, rest_bytes = [others[-1]], len(others[-1])
    if rest_bytes:
        yield b"".join(rest)


def _read_all(loop: asyncio.AbstractEventLoop, pieces: asyncio.Queue[bytes]) -> None:
    while True:
        try:
            piece = os.read(_STDIN, _PIECE_BYTES)
        except OSError:  # Closed, or not to be read: there is no more.
            piece = b""
        putting = pieces.put(piece)
        try:
            asyncio.run_coroutine_threadsafe(putting, loop).result()
        except (RuntimeError, concurrent.futures.CancelledError):  # The loop has ended, and needs no more.
            putting.close()
            return
        if not piece:
            return
