"""Commands of `magnetar` as a user runs them, in processes of their own, without each paying for its imports.

Purpose:   speed. One process (this file as a program) imports the command line once and forks for every command. Each
           has arguments, environment, standard streams and an exit code of its own, as if a shell had started it.
Limits:    tests of terminals, and of variables that Python reads when it starts, start a process themselves.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any, NoReturn

TIMEOUT_S = 60.0
_LEFT_OUT = ("MAGNETAR_", "FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "COLUMNS", "TERMINAL_WIDTH")
_STREAMS = ("stdin", "stdout", "stderr")
_server: subprocess.Popen[bytes] | None = None


def run_magnetar(*arguments: str, text: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """The environment is ours and `variables`, without what configures magnetar or makes it draw for a terminal."""
    with tempfile.TemporaryDirectory(prefix="magnetar-command-") as directory:
        Path(directory, "stdin").write_text(text)
        code = _ask({"arguments": arguments, "environment": clean_environment(**variables), "streams": directory})
        stdout, stderr = (Path(directory, name).read_text() for name in _STREAMS[1:])
    return subprocess.CompletedProcess(["magnetar", *arguments], code, stdout, stderr)


def clean_environment(**variables: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(_LEFT_OUT)} | variables


def _ask(request: dict[str, Any]) -> int:
    server = _running_server()
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps(request).encode() + b"\n")
    server.stdin.flush()
    readable, _, _ = select.select([server.stdout], [], [], TIMEOUT_S)
    answer = server.stdout.readline() if readable else b""
    if not answer:
        _end(server)
        raise TimeoutError(f"magnetar {' '.join(request['arguments'])} did not end within {TIMEOUT_S:g} s")
    return int(answer)


def _running_server() -> subprocess.Popen[bytes]:
    global _server
    if _server is None or _server.poll() is not None:
        pipe = subprocess.PIPE
        _server = subprocess.Popen([sys.executable, __file__], stdin=pipe, stdout=pipe, start_new_session=True)
        atexit.register(_end, _server)
    return _server


def _end(server: subprocess.Popen[bytes]) -> None:
    """With the command that it may be running."""
    if server.poll() is None:
        os.killpg(server.pid, 9)
    server.wait()


# --- in the process that forks ----------------------------------------------------------------------------------------


def _serve() -> None:
    import magnetar.cli.bookie.command
    import magnetar.cli.ledger
    import magnetar.cli.main
    import magnetar.cli.metadata

    for line in sys.stdin.buffer:
        request = json.loads(line)
        child = os.fork()
        if not child:
            _be_the_command(request, magnetar.cli.main.main)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def _be_the_command(request: dict[str, Any], main: Any) -> NoReturn:
    for number, name in enumerate(_STREAMS):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND
        os.dup2(os.open(Path(request["streams"], name), flags, 0o600), number)
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = ["magnetar", *request["arguments"]]
    code: Any = 1
    try:
        main()
        code = 0
    except SystemExit as exit_:
        code = exit_.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    _serve()
