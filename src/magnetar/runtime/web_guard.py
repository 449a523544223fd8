"""WebGuard: refuses HTTP requests that a foreign web page made a browser send.

Purpose:   a port on a loopback address asks for no password, and every page that its user opens can send requests to
           it. A page of another site is named by the header Origin, or by Sec-Fetch-Site. A page whose own name was
           made to point to this machine (DNS rebinding) is named by the header Host.
Invariant: on a loopback address, Host must be a loopback name or address, one of the server's own names, or a name of
           `http.allowed_hosts`. On another address any name that the network has for the server may be right, so that
           Host is compared only if `http.allowed_hosts` is set.
           If Origin is sent, it must be the server that is asked, or the setting `http.allowed_origins` must name it.
           Programs (curl, pulsar-admin, Prometheus) send none. A link that a user follows is no foreign call.
Limits:    the identity and the rights of a caller are not checked here.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from magnetar.config.process import ANY, HttpConfig

FORBIDDEN: Final = 403
_SHOWN_CHARACTERS_MAX: Final = 100
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_READING: Final = ("GET", "HEAD")


class WebGuard:
    """`listens_on` is the address of the port, `names` are those under which the server is advertised."""

    def __init__(self, config: HttpConfig, listens_on: str, names: Iterable[str] = ()) -> None:
        self._hosts = {host for name in (*config.hosts(), *names) if (host := _host_of(name)) is not None}
        self._origins = {_origin_of(origin) for origin in config.origins()}
        self._any_host = ANY in config.hosts() or not (config.hosts() or is_loopback(listens_on))
        self._any_origin = ANY in config.origins()

    def complaint(self, method: str, headers: Iterable[tuple[bytes, bytes]]) -> str | None:
        """Returns why the request is refused, or None. Names of headers are in lower case."""
        given: dict[bytes, list[str]] = {}
        for name, value in headers:
            given.setdefault(name, []).append(value.decode("latin-1").strip())
        hosts = given.get(b"host", [])
        if len(hosts) > 1:
            return "the request has more than one Host header: send one"
        host = hosts[0] if hosts else None
        if host is not None and not self._answers_to(host):
            return (
                f"this server does not answer to the name {_shown(host)}, which the header Host gives: call it as "
                "localhost, or add the name to http.allowed_hosts"
            )
        return self._foreign_page(method, host, given)

    def _answers_to(self, authority: str) -> bool:
        if self._any_host:
            return True
        host = _host_of(authority)
        return host is not None and (host in self._hosts or is_loopback(host))

    def _foreign_page(self, method: str, host: str | None, given: dict[bytes, list[str]]) -> str | None:
        if self._any_origin:
            return None
        origins = given.get(b"origin", [])
        for origin in origins:
            if not (self._is_own(origin, host) or _origin_of(origin) in self._origins):
                return (
                    f"a web page of {_shown(origin)} may not call this server: if it should, add it to "
                    "http.allowed_origins"
                )
        site = given.get(b"sec-fetch-site", ["none"])
        is_link = method in _READING and given.get(b"sec-fetch-mode") == ["navigate"]
        if origins or is_link or all(each in ("same-origin", "none") for each in site):
            return None
        return "a web page of another site may not call this server: open the address itself"

    def _is_own(self, origin: str, host: str | None) -> bool:
        scheme, _, _ = origin.partition("://")
        found = _origin_of(origin)
        return host is not None and found is not None and found == _origin_of(f"{scheme}://{host}")


def is_loopback(host: str) -> bool:
    """Reports whether a name or address always means the machine itself."""
    host = host.strip("[]").rstrip(".").lower()
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def _host_of(authority: str) -> str | None:
    """Returns the host without the port, brackets and a last dot."""
    if authority.count(":") > 1 and not authority.startswith("["):
        authority = f"[{authority}]"  # An address of IPv6 as configurations write it.
    try:
        host = urlsplit(f"//{authority}").hostname
    except ValueError:
        return None
    return host.rstrip(".").lower() if host else None


def _origin_of(text: str) -> tuple[str, str, int] | None:
    """Returns scheme, host and port; None for text that is not an origin, such as `null`."""
    try:
        parts = urlsplit(text)
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
    except ValueError:
        return None
    if not parts.hostname or port is None:
        return None
    return parts.scheme, parts.hostname.rstrip(".").lower(), port


def _shown(text: str) -> str:
    return ascii(text[:_SHOWN_CHARACTERS_MAX])
