"""fallocate(2) with KEEP_SIZE: blocks beyond the end of a file, which the standard library does not offer.

`os.posix_fallocate` would grow the file, so that a reader after a crash could not tell records from reserved zeros by
the file's size. A file system without support says EOPNOTSUPP; reserving is only a request, so that is not an error.
"""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Final

_KEEP_SIZE: Final = 0x01

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
_libc.fallocate.restype = ctypes.c_int


def reserve(fd: int, offset: int, length: int) -> None:
    while _libc.fallocate(fd, _KEEP_SIZE, offset, length):
        code = ctypes.get_errno()
        if code == errno.EOPNOTSUPP:
            return
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))
