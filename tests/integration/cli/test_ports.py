"""A server whose port is in use: it says so, and leaves nothing."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.commands import run_magnetar


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("standalone --port {port} --http-port 0", "--port"),
        ("standalone --port 0 --http-port {port}", "--http-port"),
        ("standalone --port 0 --http-port 0 --set bookie.port={port}", "--set bookie.port=PORT"),
        ("broker --port {port} --http-port 0 --metadata sqlite:{place}", "--port"),
        ("broker --port 0 --http-port {port} --metadata sqlite:{place}", "--http-port"),
        ("bookie --port {port} --metadata sqlite:{place}", "--port"),
        ("bookie --port 0 --set bookie.http_port={port} --metadata sqlite:{place}", "--set bookie.http_port=PORT"),
    ],
)
def test_a_server_that_cannot_have_its_port_makes_nothing(tmp_path: Path, command: str, option: str) -> None:
    place = tmp_path / "data"
    words = command.split() + (["--dir", str(place)] if "broker" not in command else [])
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = run_magnetar(
            *(word.format(port=port, place=place) for word in words),
            MAGNETAR_PULSAR_LISTEN_HOST="127.0.0.1", MAGNETAR_BOOKIE_LISTEN_HOST="127.0.0.1",
        )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert f"cannot listen on 127.0.0.1:{port}" in line
    assert line.endswith(f"choose another with {option}")
    assert not place.exists()
