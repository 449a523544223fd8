"""Which requests a port refuses because a web page may have caused them."""

from __future__ import annotations

import pytest

from magnetar.config.process import HttpConfig
from magnetar.errors import ConfigError
from magnetar.runtime.web_guard import WebGuard

LOOPBACK = WebGuard(HttpConfig(), "127.0.0.1", ["broker.test"])
PUBLIC = WebGuard(HttpConfig(), "0.0.0.0", ["broker.test"])


def asked(guard: WebGuard, method: str = "GET", **headers: str) -> str | None:
    return guard.complaint(
        method, [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    )


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:8080",
        "LOCALHOST.",
        "a.localhost:1",
        "127.0.0.1:8080",
        "127.9.9.9",
        "[::1]:8080",
        "[::ffff:127.0.0.1]:80",
        "broker.test:8080",
    ],
)
def test_a_loopback_port_answers_to_loopback_names_and_to_its_own(host: str) -> None:
    assert asked(LOOPBACK, host=host) is None


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8080", "localhost.evil.example", "192.168.0.1", "", "[", "127.0.0.1@evil:80", "a:b"],
)
def test_a_loopback_port_does_not_answer_to_a_name_that_may_have_been_made_to_point_to_it(host: str) -> None:
    complaint = asked(LOOPBACK, host=host)
    assert complaint is not None
    assert "http.allowed_hosts" in complaint


def test_a_program_that_sends_no_host_is_no_browser() -> None:
    assert asked(LOOPBACK) is None


def test_two_hosts_are_refused() -> None:
    complaint = LOOPBACK.complaint("GET", [(b"host", b"localhost"), (b"host", b"evil.example")])
    assert complaint is not None
    assert "more than one Host" in complaint


def test_names_of_the_setting_are_answered_to() -> None:
    guard = WebGuard(HttpConfig(allowed_hosts="Proxy.test, fd00::1"), "127.0.0.1")
    assert asked(guard, host="proxy.test:443") is None
    assert asked(guard, host="[fd00::1]:8080") is None
    assert asked(guard, host="evil.example") is not None
    assert asked(WebGuard(HttpConfig(allowed_hosts="*"), "127.0.0.1"), host="evil.example") is None


def test_a_port_on_another_address_answers_to_any_name_unless_names_are_set() -> None:
    assert asked(PUBLIC, host="balancer.test") is None
    guard = WebGuard(HttpConfig(allowed_hosts="balancer.test"), "10.0.0.1", ["broker.test"])
    assert asked(guard, host="balancer.test") is None
    assert asked(guard, host="broker.test") is None
    assert asked(guard, host="evil.example") is not None


@pytest.mark.parametrize("guard", [LOOPBACK, PUBLIC])
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "OPTIONS"])
@pytest.mark.parametrize(
    "origin", ["http://evil", "null", "http://localhost:3000", "https://localhost", "", "http://["]
)
def test_a_page_of_another_origin_may_not_call(guard: WebGuard, method: str, origin: str) -> None:
    complaint = asked(guard, method, host="localhost:8080", origin=origin)
    assert complaint is not None
    assert "http.allowed_origins" in complaint


@pytest.mark.parametrize("guard", [LOOPBACK, PUBLIC])
@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost:8080", "http://localhost:8080"),
        ("localhost", "http://localhost"),
        ("localhost:80", "http://localhost"),
        ("localhost:8080", "https://localhost:8080"),  # A proxy may bring TLS.
        ("broker.test:443", "https://broker.test"),
        ("[::1]:8080", "http://[::1]:8080"),
    ],
)
def test_a_page_of_the_server_itself_may_call(guard: WebGuard, host: str, origin: str) -> None:
    assert asked(guard, "POST", host=host, origin=origin, sec_fetch_site="same-origin") is None


def test_pages_of_the_setting_may_call() -> None:
    guard = WebGuard(HttpConfig(allowed_origins="https://Dash.test, http://localhost:3000"), "127.0.0.1")
    assert asked(guard, "POST", host="localhost:8080", origin="https://dash.test") is None
    assert asked(guard, "POST", host="localhost:8080", origin="http://localhost:3000") is None
    assert asked(guard, "POST", host="localhost:8080", origin="http://dash.test") is not None
    anybody = WebGuard(HttpConfig(allowed_origins="*"), "127.0.0.1")
    assert asked(anybody, "POST", host="localhost:8080", origin="null") is None


def test_a_request_that_another_page_caused_without_an_origin_is_refused_unless_it_is_a_link() -> None:
    image = {"host": "localhost:8080", "sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors"}
    assert asked(LOOPBACK, "GET", **image) is not None
    assert asked(LOOPBACK, "GET", **image | {"sec_fetch_mode": "navigate"}) is None
    assert asked(LOOPBACK, "POST", **image | {"sec_fetch_mode": "navigate"}) is not None
    assert asked(LOOPBACK, "GET", **image | {"sec_fetch_site": "none"}) is None


@pytest.mark.parametrize(
    "settings",
    [
        {"allowed_hosts": "http://a"},
        {"allowed_hosts": "["},
        {"allowed_origins": "a.test"},
        {"allowed_origins": "http://a/b"},
    ],
)
def test_settings_that_name_no_host_or_origin_are_refused(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="write it as"):
        HttpConfig(**settings)
