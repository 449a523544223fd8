"""`magnetar pipeline compact`: where to, and the way without Spark."""

from __future__ import annotations

import re
import time
from typing import Final
from urllib.parse import urlsplit

from magnetar.broker.names import TopicName
from magnetar.cli.admin_client import AdminClient, topic_path
from magnetar.errors import ArgumentError, CompactionError

_PATH = re.compile(r"(?:/|\./|\.\./|~/|(?!persistent:|non-persistent:)[A-Za-z][\w+.-]*:/)")
_LOOK_EVERY_S: Final = 0.2
_WAIT_S: Final = 3_600.0


def destination(text: str) -> tuple[str, str]:
    """A topic or a path; the other one is empty. A path begins with /, ./, ../, ~/ or a scheme such as s3a://."""
    return ("", text) if _PATH.match(text) else (str(TopicName.parse(text)), "")


def compact_in_place(topic: str, url: str, admin_url: str | None) -> None:
    """Returns when the broker has done it. CompactionError if it could not."""
    client, name = AdminClient(admin_url or default_admin_url(url)), TopicName.parse(topic)
    partitions = client.get(f"{topic_path(name)}/partitions")["partitions"]
    names = [TopicName.parse(f"{name}-partition-{number}") for number in range(partitions)] or [name]
    client.put(f"{topic_path(name)}/compaction")
    until = time.monotonic() + _WAIT_S
    for each in names:
        _wait(client, each, until)


def _wait(client: AdminClient, topic: TopicName, until: float) -> None:
    while time.monotonic() < until:
        found = client.get(f"{topic_path(topic)}/compaction")
        if found["status"] == "ERROR":
            raise CompactionError(f"{topic} was not compacted: {found['lastError']}")
        if found["status"] != "RUNNING":
            return
        time.sleep(_LOOK_EVERY_S)
    raise CompactionError(f"{topic} is still being compacted after {_WAIT_S:g} s; it goes on in the broker")


def default_admin_url(url: str) -> str:
    try:
        host = urlsplit(url).hostname
    except ValueError:  # Half a bracket.
        host = None
    if not host:
        raise ArgumentError(f"{url!r} is not where a broker is: write pulsar://HOST:PORT")
    return f"http://{f'[{host}]' if ':' in host else host}:8080"
