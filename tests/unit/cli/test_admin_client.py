"""The small HTTP client of the commands: what it makes of answers, and what it says when there is none."""

from __future__ import annotations

import socket
import threading

import pytest

from magnetar.cli.admin.client import AdminClient, AdminError, _parse, namespace_path, topic_path
from magnetar.config.load import OTHER_VARIABLES
from magnetar.errors import ConfigError
from magnetar.names import TopicName


def test_an_answer_with_a_length_is_read() -> None:
    answer = _parse(b'HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: b\r\n\r\n["a"]')
    assert (answer.status, answer.headers["x-a"], answer.json()) == (200, "b", ["a"])


def test_an_answer_in_chunks_is_joined() -> None:
    answer = _parse(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\n[1,\r\n2\r\n2]\r\n0\r\n\r\n")
    assert answer.json() == [1, 2]


def test_an_empty_answer_is_none() -> None:
    assert _parse(b"HTTP/1.1 204 No Content\r\n\r\n").json() is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n",
    ],
)
def test_what_is_no_whole_answer_is_an_error(data: bytes) -> None:
    with pytest.raises(AdminError):
        _parse(data)


@pytest.mark.parametrize("answer", [b"", b"\0\0\0\x05\0\0\0\1x", b"SSH-2.0-x\r\n"])
def test_a_port_that_does_not_speak_http_is_explained(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        port = server.getsockname()[1]
        with pytest.raises(AdminError, match=f"127.0.0.1:{port} does not speak HTTP.*usually 8080.*--admin-url"):
            AdminClient(f"http://127.0.0.1:{port}").get("tenants")
        thread.join(10)


def test_an_answer_that_is_not_json_is_an_error() -> None:
    with pytest.raises(AdminError, match="not JSON"):
        _parse(b"HTTP/1.1 200 OK\r\n\r\n<html>").json()


def test_nobody_at_the_address_says_what_to_do() -> None:
    with pytest.raises(AdminError, match="start `magnetar standalone`"):
        AdminClient("http://127.0.0.1:1").get("tenants")


def test_a_request_is_repeated_until_another_broker_has_the_topics_of_one_that_was_killed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    answers = [b"HTTP/1.1 307 Moved\r\nLocation: http://127.0.0.1:1/x\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n[1]"]
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for answer in answers:
                connection, _ = server.accept()
                with connection:
                    connection.recv(1000)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        assert AdminClient(f"http://127.0.0.1:{server.getsockname()[1]}").get("tenants") == [1]
        thread.join(10)
    assert "127.0.0.1:1, does not answer: waiting" in capsys.readouterr().err


def test_a_name_that_no_host_can_have_is_nobody() -> None:
    with pytest.raises(AdminError, match="no server answers"):
        AdminClient(f"http://{'a' * 64}:8080").get("tenants")


@pytest.mark.parametrize(
    "url", ["https://127.0.0.1:1", "127.0.0.1:8080", "pulsar://a:1", "http://a:80x", "http://[::1"]
)
def test_an_address_that_is_none_of_an_admin_interface_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="http://HOST:PORT"):
        AdminClient(url).get("tenants")


def test_names_become_segments_of_a_path() -> None:
    assert topic_path(TopicName.parse("a b")) == "persistent/public/default/a+b"
    assert topic_path(TopicName.parse("non-persistent://t/n/a%b")) == "non-persistent/t/n/a%25b"
    for wrong in ("public", "a/b/c", "/n", "t/"):
        with pytest.raises(ConfigError, match="TENANT/NAMESPACE"):
            namespace_path(wrong)


def test_the_variables_of_the_options_are_known_to_the_configuration() -> None:
    assert {"MAGNETAR_URL", "MAGNETAR_ADMIN_URL"} <= set(OTHER_VARIABLES)
