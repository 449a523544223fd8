"""`magnetar dev cluster`: a whole cluster on this machine, whose members are killed and paused from another terminal.

Purpose:   `run` starts the members (testing/processes/cluster.py), and then obeys `ask`, which the commands `dev kill`,
           `dev pause` and so on call from another process.
Format:    Both meet at a Unix socket in the cluster's directory. A request is one JSON line, such as
           {"do": "kill", "member": "broker-1"}; so is the answer: {"members": […]}, or {"error": "…"}.
Failure:   A member that ends by itself is reported, and the cluster continues without it: that is what it is for.
Limits:    One request at a time. A client that does not send its line in time is given up.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from magnetar.cli.output import note
from magnetar.errors import ArgumentError, MagnetarError, ProcessFailedError
from magnetar.testing.processes.cluster import Member, ProcessCluster
from magnetar.testing.processes.servers import BookieProcess, BrokerProcess
from magnetar.testing.processes.zookeeper import ZooKeeperServer

_SOCKET: Final = "control.sock"
_PATH_BYTES_MAX: Final = 100
"""The kernel has room for 107 bytes in the address of a socket."""
_LOOK_S: Final = 0.2
_REQUEST_TIMEOUT_S: Final = 5.0
_REQUEST_BYTES_MAX: Final = 4_096
_ANSWER_TIMEOUT_S: Final = 120.0
"""A member may take a while to stop or to start."""
_ANSWER_BYTES_MAX: Final = 1_000_000

RUNNING, PAUSED, ENDED = "running", "paused", "ended"


class Control:
    """What the cluster's process does for the commands."""

    def __init__(self, cluster: ProcessCluster) -> None:
        self._members = cluster.members
        self._paused: set[str] = set()
        self._known_to_have_ended: set[str] = set()
        self._verbs: dict[str, Callable[[str, Member], None]] = {
            "kill": self._kill,
            "stop": self._stop,
            "pause": self._pause,
            "resume": self._resume,
            "restart": self._restart,
        }

    def members(self) -> list[dict[str, Any]]:
        return [{"name": name, "state": self._state(name), **_described(each)} for name, each in self._members.items()]

    def do(self, verb: str, name: str) -> None:
        """MagnetarError if that is not possible."""
        member = self._members.get(name)
        if member is None:
            raise ArgumentError(f"the cluster has no member {name!r}; it has: {', '.join(self._members)}")
        self._verbs[verb](name, member)

    def newly_ended(self) -> list[str]:
        """Members that have ended by themselves since the last call."""
        ended = {name for name, member in self._members.items() if not member.is_running}
        found = sorted(ended - self._known_to_have_ended)
        self._known_to_have_ended = ended
        self._paused -= ended
        return found

    def _state(self, name: str) -> str:
        if not self._members[name].is_running:
            return ENDED
        return PAUSED if name in self._paused else RUNNING

    def _kill(self, name: str, member: Member) -> None:
        _require(member, name)
        member.kill()
        self._end(name)

    def _stop(self, name: str, member: Member) -> None:
        _require(member, name)
        member.stop()
        self._end(name)

    def _end(self, name: str) -> None:
        self._paused.discard(name)
        self._known_to_have_ended.add(name)

    def _pause(self, name: str, member: Member) -> None:
        _require(member, name)
        member.pause()
        self._paused.add(name)

    def _resume(self, name: str, member: Member) -> None:
        _require(member, name)
        member.resume()
        self._paused.discard(name)

    def _restart(self, name: str, member: Member) -> None:
        """Also one that has ended."""
        if member.is_running:
            self._stop(name, member)
        member.start()
        self._known_to_have_ended.discard(name)


def _require(member: Member, name: str) -> None:
    if not member.is_running:
        raise MagnetarError(f"{name} has ended: start it with `magnetar dev restart {name}`")


def _described(member: Member) -> dict[str, Any]:
    about: dict[str, Any] = {"pid": member.pid}
    if isinstance(member, BrokerProcess):
        return about | {"url": member.url, "admin_url": member.admin_url}
    if isinstance(member, BookieProcess):
        return about | {"address": member.bookie_id}
    return about | {"address": member.address} if isinstance(member, ZooKeeperServer) else about


# --- the cluster's process --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def listening(directory: Path) -> Iterator[socket.socket]:
    """Only one cluster at a time runs in a directory."""
    path = _socket_path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    if path.exists():
        with contextlib.suppress(OSError), _connected(path):
            raise MagnetarError(f"a cluster is running in {directory} already: stop it, or choose another --dir")
        path.unlink(missing_ok=True)  # The one that made it was killed.
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen()
        try:
            yield listener
        finally:
            path.unlink(missing_ok=True)


def obey(listener: socket.socket, control: Control, is_over: Callable[[], bool]) -> None:
    """Until it is over."""
    while not is_over():
        for name in control.newly_ended():
            note(f"{name} has ended; start it again with `magnetar dev restart {name}`")
        if select.select([listener], [], [], _LOOK_S)[0]:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):  # The client may leave, or say nothing.
                connection.settimeout(_REQUEST_TIMEOUT_S)
                connection.sendall(json.dumps(_answer(control, _read_line(connection, _REQUEST_BYTES_MAX))).encode())


def _answer(control: Control, line: bytes) -> dict[str, Any]:
    try:
        request = json.loads(line)
        if request["do"] != "status":
            control.do(request["do"], request["member"])
    except MagnetarError as error:
        return {"error": str(error).partition("\n")[0], "asked_wrongly": error.asked_wrongly}
    except (ValueError, KeyError, TypeError):
        return {"error": "the request is not understood: both commands must be of the same version"}
    return {"members": control.members()}


# --- the other process ------------------------------------------------------------------------------------------------


def ask(directory: Path, verb: str, member: str | None = None) -> list[dict[str, Any]]:
    """Returns all members as they are after it."""
    try:
        with _connected(_socket_path(directory)) as connection:
            connection.sendall(json.dumps({"do": verb, "member": member}).encode() + b"\n")
            connection.shutdown(socket.SHUT_WR)
            answer = json.loads(_read_line(connection, _ANSWER_BYTES_MAX) or b"{}")
    except TimeoutError:
        raise ProcessFailedError(f"the cluster in {directory} did not answer within {_ANSWER_TIMEOUT_S:g} s") from None
    except OSError:
        raise ProcessFailedError(
            f"no cluster is running in {directory}: start one with `magnetar dev cluster`, or name its --dir"
        ) from None
    if "error" in answer:
        raise (ArgumentError if answer.get("asked_wrongly") else MagnetarError)(answer["error"])
    if "members" not in answer:
        raise ProcessFailedError(f"the cluster in {directory} ended while it was asked")
    members: list[dict[str, Any]] = answer["members"]
    return members


def _connected(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(_ANSWER_TIMEOUT_S)
    try:
        connection.connect(str(path))
    except OSError:
        connection.close()
        raise
    return connection


def _read_line(connection: socket.socket, bytes_max: int) -> bytes:
    found = bytearray()
    while len(found) < bytes_max and not found.endswith(b"\n") and (part := connection.recv(4_096)):
        found += part
    return bytes(found)


def _socket_path(directory: Path) -> Path:
    path = directory.absolute() / _SOCKET
    if len(str(path).encode()) > _PATH_BYTES_MAX:
        raise ArgumentError(f"the path of {directory} is too long for a socket in it: choose a shorter --dir")
    return path
