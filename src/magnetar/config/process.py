"""Settings that every process has: its log output, and the host names and web pages that may use its HTTP port."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from magnetar.config.knobs import check_knobs, knob
from magnetar.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggingConfig:
    """Log output.

    Values may differ between processes. Changes need a restart.
    """

    level: str = knob(
        "INFO",
        "Least severe level that is logged.",
        choices=("DEBUG", "INFO", "WARNING", "ERROR"),
        bookkeeper="BOOKIE_ROOT_LOG_LEVEL",
        pulsar="PULSAR_LOG_LEVEL",
    )
    format: str = knob(
        "auto",
        "Format of log lines: readable text (`human`), one JSON object per line (`json`), or text on a terminal and "
        "JSON elsewhere (`auto`).",
        choices=("auto", "human", "json"),
    )

    def __post_init__(self) -> None:
        check_knobs(self)


ANY = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig:
    """Access to the HTTP port of a broker or a bookie.

    Values may differ between processes. Changes need a restart.
    """

    allowed_hosts: str = knob(
        "",
        "Further host names under which clients reach the HTTP port, separated by commas; `*` allows any name. On a "
        "loopback address, loopback names and the advertised host are always allowed. On any other address, an empty "
        "value allows any name.",
    )
    allowed_origins: str = knob(
        "",
        "Origins of other web pages that may call the HTTP port, as `https://host:port`, separated by commas; `*` "
        "allows any page.",
    )

    def __post_init__(self) -> None:
        check_knobs(self)
        for name in self.hosts():
            if name != ANY and ("/" in name or _host_of(name) is None):
                raise ConfigError(f"http.allowed_hosts: {name!r} is not a host name: write it as example.org")
        for origin in self.origins():
            if origin != ANY and not _is_origin(origin):
                raise ConfigError(f"http.allowed_origins: {origin!r} is not an origin: write it as https://example.org")

    def hosts(self) -> tuple[str, ...]:
        return _parts(self.allowed_hosts)

    def origins(self) -> tuple[str, ...]:
        return _parts(self.allowed_origins)


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip().lower() for part in text.split(",") if part.strip())


def _host_of(authority: str) -> str | None:
    try:
        return urlsplit(f"//{authority}").hostname
    except ValueError:  # Half a bracket.
        return None


def _is_origin(text: str) -> bool:
    scheme, separator, authority = text.partition("://")
    return bool(scheme and separator) and "/" not in authority and _host_of(authority) is not None
