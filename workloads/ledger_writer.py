"""A writer process as its owner sees it, and the record of everything that was acknowledged to it.

Record:    `Stream` holds the ledgers in the order they were written, and what is acknowledged of each. It is fed by a
           thread that reads the writer's pipe, so that nothing the owner does can make the writer wait.
Kill:      after the death of a writer its pipe is read to the end: what was acknowledged and not read yet counts.
Read next: ledger_load.py (the program), ledger_check.py
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from magnetar.errors import ProcessFailedError
from magnetar.testing.processes.child import Child

PROGRAM: Final = (sys.executable, str(Path(__file__).with_name("ledger_load.py")))
END_TIMEOUT_S: Final = 60.0
_LAST_WORDS_MAX: Final = 1_500


@dataclass(slots=True)
class Written:
    """One ledger of the stream."""

    ledger_id: int
    first_message: int
    acknowledged: int = 0
    """Entries 0 up to this one, without it: acknowledgements come in order, without a gap."""
    first_ack_at: float | None = None
    last_ack_at: float | None = None


class Stream:
    """What the writers said. Fed by a thread per writer, read by all."""

    def __init__(self) -> None:
        self.ledgers: list[Written] = []
        self.bookies: tuple[str, ...] = ()
        """Those that the last ledger is being written to."""
        self.recovered: dict[int, int] = {}
        """The last entry of each ledger that a writer recovered."""
        self.closed: dict[int, int] = {}
        """The last entry of each ledger that its own writer closed."""
        self.disorders: list[str] = []
        """Acknowledgements that did not come in order."""
        self.longest_stall_s = 0.0
        """Between two acknowledgements of one writer, while it was the only one."""
        self._lock = threading.Lock()

    @property
    def acknowledged(self) -> int:
        return sum(written.acknowledged for written in self.ledgers)

    @property
    def last(self) -> Written:
        return self.ledgers[-1]

    def take(self, line: str) -> None:
        kind, *words = line.split(" ")
        ledger_id = int(words[0])
        with self._lock:
            match kind:
                case "acked":
                    self._on_acked(ledger_id, int(words[1]), int(words[2]), float(words[3]))
                case "bookies" if ledger_id == self.last.ledger_id:
                    self.bookies = tuple(words[1].split(","))
                case "bookies":
                    pass  # A writer that was deposed does not know it yet.
                case "ledger":
                    self.ledgers.append(Written(ledger_id, int(words[1])))
                case "recovered":
                    self.recovered[ledger_id] = int(words[1])
                case "closed":
                    self.closed[ledger_id] = int(words[1])
                case _:
                    raise AssertionError(f"a writer said {line!r}")

    def _on_acked(self, ledger_id: int, first: int, last: int, at: float) -> None:
        written = next(written for written in self.ledgers if written.ledger_id == ledger_id)
        if first != written.acknowledged or last < first:
            self.disorders.append(
                f"entries {first} to {last} of ledger {ledger_id} were acknowledged when entry {written.acknowledged} "
                "was the next in turn"
            )
        written.acknowledged = max(written.acknowledged, last + 1)
        if written.first_ack_at is None:
            written.first_ack_at = at
        if written.last_ack_at is not None and written is self.last:
            self.longest_stall_s = max(self.longest_stall_s, at - written.last_ack_at)
        written.last_ack_at = at


class WriterProcess:
    """Runs from the moment it is made; goes on behind the last ledger of the stream, if there is one."""

    def __init__(self, metadata: str, stream: Stream, log: Path, settings: Sequence[str] = (), *, rate: int) -> None:
        argv = [*PROGRAM, "--metadata", metadata, "--rate", str(rate)]
        if stream.ledgers:
            argv += ["--recover", str(stream.last.ledger_id), "--first-message", str(stream.last.first_message)]
        argv += [word for setting in settings for word in ("--set", setting)]
        self._stream = stream
        self._child = Child(argv, log=log, stdout=subprocess.PIPE)
        self.failure: str | None = None
        """The error it ended with: its class, then the message."""
        self._trouble: BaseException | None = None
        assert self._child.popen.stdout is not None
        self._thread = threading.Thread(target=self._read, args=(self._child.popen.stdout,), daemon=True)
        self._thread.start()

    def _read(self, pipe: IO[bytes]) -> None:
        try:
            for line in pipe:
                if line.endswith(b"\n"):
                    self._take(line.decode().rstrip("\n"))
        except BaseException as error:
            self._trouble = error

    def _take(self, line: str) -> None:
        if line.startswith("failed "):
            self.failure = line.removeprefix("failed ")
        else:
            self._stream.take(line)

    @property
    def is_running(self) -> bool:
        return self._child.is_running

    def check(self) -> None:
        """ProcessFailedError if it is not there any more."""
        if not self.is_running:
            self._finish()
            raise ProcessFailedError(f"the writer ended by itself: {self._last_words()}")

    def pause(self) -> None:
        """SIGSTOP."""
        self._child.pause()

    def resume(self) -> None:
        self._child.resume()

    def kill(self) -> float:
        """kill -9, and everything that it still said. Returns the moment of death, on the monotonic clock."""
        if self.is_running:
            self._child.popen.kill()
            self._child.popen.wait()
        at = time.monotonic()
        self._finish()
        return at

    def stop(self) -> None:
        """Has it close its ledger. ProcessFailedError if it did not."""
        self.check()
        self._child.popen.terminate()
        self.wait_ended()
        if self._stream.last.ledger_id not in self._stream.closed:
            raise ProcessFailedError(f"the writer did not close its ledger: {self._last_words()}")

    def wait_ended(self) -> None:
        """And everything that it said is recorded. It is killed if it does not end in time."""
        try:
            self._child.popen.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self._finish()

    def _last_words(self) -> str:
        return self.failure or "its log ends with " + self._child.log_tail()[-_LAST_WORDS_MAX:]

    def _finish(self) -> None:
        self._thread.join(END_TIMEOUT_S)
        self._child.kill()
        if self._trouble is not None:
            raise self._trouble
