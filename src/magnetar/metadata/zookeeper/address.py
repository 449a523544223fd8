"""The address of a ZooKeeper store: `zk://host:2181,host:2181/chroot`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from magnetar.errors import ConfigError, InvalidPathError
from magnetar.metadata.paths import ROOT, check_path

SCHEME = "zk://"
DEFAULT_PORT = 2181
_SERVER = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:(?P<port>\d{1,5}))?")
_PORT_MAX = 65_535


@dataclass(frozen=True, slots=True)
class Address:
    servers: tuple[str, ...]
    """Each as host:port."""
    chroot: str = ""
    """Empty, or an absolute path below which everything of ours lives."""

    @classmethod
    def parse(cls, url: str) -> Address:
        if not url.startswith(SCHEME):
            raise ConfigError(f"metadata.url {url!r} does not begin with {SCHEME}")
        servers, slash, rest = url.removeprefix(SCHEME).partition("/")
        chroot = f"{slash}{rest}".rstrip("/")
        try:
            check_path(chroot or ROOT)
        except InvalidPathError as error:
            raise ConfigError(f"metadata.url {url!r}: the chroot is not a path: {error}") from None
        return cls(tuple(_server(part.strip(), url) for part in servers.split(",")), chroot)

    def __str__(self) -> str:
        return f"{SCHEME}{','.join(self.servers)}{self.chroot}"


def _server(text: str, url: str) -> str:
    found = _SERVER.fullmatch(text)
    port = int(found["port"] or DEFAULT_PORT) if found else 0
    if not found or not 0 < port <= _PORT_MAX:
        raise ConfigError(f"metadata.url {url!r}: {text!r} is not host:port; use zk://host1:2181,host2:2181/chroot")
    return f"{found['host']}:{port}"
