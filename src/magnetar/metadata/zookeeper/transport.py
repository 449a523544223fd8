"""kazoo's socket and its wake-up pipe, made cheap: a system call per burst instead of several per request.

BufferedSocket: reads whatever has arrived at once, and keeps what is written until kazoo is about to wait.
Wake pair:      kazoo sends itself a byte per queued request over a blocking pipe; with its thread held up and the pipe
                full (some hundred bytes), that would block the event loop. Here the pipe never holds more than one.
"""

from __future__ import annotations

import select
import ssl
from collections.abc import Sequence
from typing import Any, Protocol

_READ_BYTES = 65_536  # More than a TLS record, of at most 16 KiB.
_WRITE_BYTES = 65_536  # Beyond this, what is written goes out at once.
_MS = 1000


class BufferedSocket:
    def __init__(self, socket: Any, timeout: float | None, timeout_error: type[Exception]) -> None:
        self._socket = socket
        self._timeout = timeout
        self._timeout_error = timeout_error
        self._unread = memoryview(b"")
        self._unsent = bytearray()

    def fileno(self) -> int:
        return int(self._socket.fileno())

    def setblocking(self, flag: bool) -> None:
        self._socket.setblocking(flag)

    def getpeername(self) -> Any:
        return self._socket.getpeername()

    def close(self) -> None:
        self._socket.close()

    def pending(self) -> int:
        """Bytes that can be read without asking the system. (TLS keeps none: we always take a whole record.)"""
        return len(self._unread)

    def recv(self, size: int) -> bytes:
        if not self._unread:
            self._unread = memoryview(self._receive())
        chunk = self._unread[:size]
        self._unread = self._unread[size:]
        return bytes(chunk)

    def _receive(self) -> bytes:
        while True:
            try:
                return bytes(self._socket.recv(_READ_BYTES))
            except (BlockingIOError, ssl.SSLWantReadError):
                self._wait(select.POLLIN)
            except ssl.SSLWantWriteError:
                self._wait(select.POLLOUT)

    def send(self, data: bytes | memoryview) -> int:
        self._unsent += data
        if len(self._unsent) >= _WRITE_BYTES:
            self.flush()
        return len(data)

    def flush(self) -> None:
        while self._unsent:
            try:
                sent = self._socket.send(self._unsent)
            except (BlockingIOError, ssl.SSLWantWriteError):
                self._wait(select.POLLOUT)
            except ssl.SSLWantReadError:
                self._wait(select.POLLIN)
            else:
                del self._unsent[:sent]

    def _wait(self, event: int) -> None:
        poll = select.poll()
        poll.register(self._socket, event)
        if not poll.poll(None if self._timeout is None else self._timeout * _MS):
            raise self._timeout_error("the server neither reads nor answers")


class Lock(Protocol):
    def __enter__(self) -> object: ...
    def __exit__(self, *_exc: object) -> object: ...


class WakeReader:
    """kazoo's thread waits on it, and takes one wake-up per request it has sent."""

    def __init__(self, socket: Any, lock: Lock) -> None:
        self._socket = socket
        self._lock = lock
        self._wanted = 0

    def fileno(self) -> int:
        return int(self._socket.fileno())

    def pending(self) -> int:
        return self._wanted

    def flush(self) -> None:
        """Nothing is ever written here."""

    def recv(self, _size: int) -> bytes:
        with self._lock:
            if self._wanted:
                self._wanted -= 1
                if not self._wanted:
                    self._socket.recv(1)
        return b"\0"

    def wake(self, socket: Any) -> None:
        with self._lock:
            self._wanted += 1
            if self._wanted == 1:
                socket.send(b"\0")

    def close(self) -> None:
        self._socket.close()


class WakeWriter:
    def __init__(self, socket: Any, reader: WakeReader) -> None:
        self._socket = socket
        self._reader = reader

    def send(self, data: bytes) -> int:
        self._reader.wake(self._socket)
        return len(data)

    def close(self) -> None:
        self._socket.close()


def make_wake_pair(reader: Any, writer: Any, lock: Lock) -> tuple[WakeReader, WakeWriter]:
    woken = WakeReader(reader, lock)
    return woken, WakeWriter(writer, woken)


def wait_ready(
    readers: Sequence[BufferedSocket | WakeReader], timeout: float | None
) -> list[BufferedSocket | WakeReader]:
    """Those that have something to read, an error to tell included; none after the timeout."""
    poll = select.poll()
    by_number = {reader.fileno(): reader for reader in readers}
    for number in by_number:
        poll.register(number, select.POLLIN)
    return [by_number[number] for number, _ in poll.poll(None if timeout is None else timeout * _MS)]
