from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from magnetar.errors import ProcessFailedError
from magnetar.testing.processes.child import Child, free_port, is_port_free, process_exists, wait_for
from magnetar.testing.processes.cluster import ProcessCluster
from magnetar.testing.processes.servers import ServerProcess

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
DEAF = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)",
]
OWNER = """
import sys, time
from pathlib import Path
from magnetar.testing.processes.child import Child
child = Child([sys.executable, "-c", "import time; time.sleep(600)"], log=Path(sys.argv[1]))
print(child.pid, flush=True)
time.sleep(600)
"""


def is_up(child: Child) -> bool:
    return "up" in child.log_tail()


def test_a_child_does_not_outlive_an_owner_that_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert process_exists(pid)
        owner.kill()
    wait_for(lambda: not process_exists(pid), what="the end of the child")


def test_a_child_is_refused_off_the_main_thread(tmp_path: Path) -> None:
    errors: list[Exception] = []

    def start() -> None:
        try:
            Child(SLEEP, log=tmp_path / "log")
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert "main thread" in str(errors[0])


def test_stop_asks_first(tmp_path: Path) -> None:
    child = Child(SLEEP, log=tmp_path / "log")
    child.wait_until(lambda: is_up(child), what="it was up", timeout=20)
    assert child.stop() == -signal.SIGTERM
    assert not process_exists(child.pid)


def test_stop_insists_when_the_child_does_not_listen(tmp_path: Path) -> None:
    child = Child(DEAF, log=tmp_path / "log")
    child.wait_until(lambda: is_up(child), what="it was up", timeout=20)
    assert child.stop(timeout=0.1) == -signal.SIGKILL


def test_stop_ends_a_paused_child(tmp_path: Path) -> None:
    child = Child(SLEEP, log=tmp_path / "log")
    child.wait_until(lambda: is_up(child), what="it was up", timeout=20)
    child.pause()
    assert child.stop() == -signal.SIGTERM


def test_a_paused_child_has_stopped_when_the_call_returns(tmp_path: Path) -> None:
    child = Child(SLEEP, log=tmp_path / "log")
    child.wait_until(lambda: is_up(child), what="it was up", timeout=20)
    try:
        for _ in range(50):
            child.pause()
            child.pause()  # It is stopped already.
            assert Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
            child.resume()
    finally:
        child.stop()
    child.pause()  # It has ended.


def test_a_child_that_ends_too_early_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    child = Child([sys.executable, "-c", "print('disk on fire'); raise SystemExit(3)"], log=tmp_path / "log")
    with pytest.raises(ProcessFailedError, match=r"ended with code 3 before it served(?s:.*)disk on fire"):
        child.wait_until(lambda: False, what="it served", timeout=20)
    assert child.stop() == 3


def test_a_child_that_is_not_ready_in_time_is_reported(tmp_path: Path) -> None:
    child = Child(SLEEP, log=tmp_path / "log")
    with pytest.raises(ProcessFailedError, match=r"it served did not happen within 0.05 s"):
        child.wait_until(lambda: False, what="it served", timeout=0.05)
    child.kill()


def test_a_port_that_somebody_listens_on_is_not_free() -> None:
    port = free_port("127.0.0.1")
    assert is_port_free("127.0.0.1", port)
    with socket.create_server(("127.0.0.1", port)):
        assert not is_port_free("127.0.0.1", port)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has names that end with their process")
def test_a_port_given_away_is_not_given_to_another_process() -> None:
    port = free_port("127.0.0.1")
    other = (
        "import magnetar.testing.processes.child as p\n"
        f"p._PORT_MIN, p._PORT_END, p._PORT_TRIES_MAX = {port}, {port + 1}, 1\n"
        "p.free_port('127.0.0.1')"
    )
    refused = subprocess.run([sys.executable, "-c", other], capture_output=True, text=True, timeout=30, check=False)
    assert "no free port found" in refused.stderr


def test_our_own_process_exists() -> None:
    assert process_exists(os.getpid())


def test_a_cluster_whose_ports_cannot_be_read_is_refused_with_advice(tmp_path: Path) -> None:
    (tmp_path / "ports.json").write_text('{"zookeeper": 18')
    with pytest.raises(ProcessFailedError, match=r"ports\.json is damaged: delete .* or choose another directory"):
        ProcessCluster(tmp_path, 1)


def test_a_server_that_ends_at_its_start_is_not_said_to_be_slow(tmp_path: Path) -> None:
    server = ServerProcess("broker-1", [sys.executable, "-c", "raise SystemExit('no port')"], tmp_path / "broker-1.log")
    with pytest.raises(ProcessFailedError, match=r"(?s)broker-1 ended before it was ready; .*no port"):
        server.start()
