"""The servers that tests and `magnetar dev zookeeper` run."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from magnetar.errors import ConfigError, MissingDependencyError, ProcessFailedError
from magnetar.testing.processes import zookeeper as servers
from magnetar.testing.processes.child import free_port, process_exists
from magnetar.testing.processes.zookeeper import HOST, ZooKeeperEnsemble, ZooKeeperServer


def test_a_server_answers_on_this_machine_only(zookeeper: ZooKeeperServer) -> None:
    assert (zookeeper.mode(), zookeeper.ask("ruok")) == ("standalone", "imok")
    addresses = {
        line.split()[1]
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/{zookeeper.pid}/net/{table}").read_text().splitlines()[1:]
        if line.split()[1].endswith(f":{zookeeper.port:04X}") and line.split()[3] == "0A"
    }
    assert addresses == {f"0100007F:{zookeeper.port:04X}"}


def test_restart_keeps_the_port_and_stop_ends_the_process(tmp_path: Path) -> None:
    with ZooKeeperServer(tmp_path) as server:
        port, pid = server.port, server.pid
        server.restart()
        assert server.port == port
        assert not process_exists(pid)
        pid = server.pid
    assert not process_exists(pid)


def test_a_port_that_is_taken_is_refused_with_advice(zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    with pytest.raises(ProcessFailedError, match=f"port {zookeeper.port} .* is in use"):
        ZooKeeperServer(tmp_path, port=zookeeper.port).start()
    with pytest.raises(ProcessFailedError, match=f"port {zookeeper.port} .* is in use"):
        ZooKeeperEnsemble(tmp_path, ports=range(zookeeper.port - 1, zookeeper.port + 2)).start()


def test_a_port_lost_to_somebody_else_at_the_last_moment_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server((HOST, 0)) as thief:
        offered = iter([thief.getsockname()[1], free_port(HOST)])
        monkeypatch.setattr(servers, "free_port", lambda _host: next(offered))
        monkeypatch.setattr(servers, "is_port_free", lambda _host, _port: True)
        with ZooKeeperServer(tmp_path) as server:
            assert server.port != thief.getsockname()[1]
            assert server.mode() == "standalone"


def test_an_ensemble_has_at_least_three_servers(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least 3"):
        ZooKeeperEnsemble(tmp_path, servers=2)


def test_without_pyspark_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "find_spec", lambda _: None)
    with pytest.raises(MissingDependencyError, match="pip install"):
        servers.class_path(with_tls=False)
