"""`magnetar pipeline` as a user runs it: a process of its own, with a Spark of its own."""

from __future__ import annotations

import subprocess
from typing import Protocol

from magnetar.testing.processes.servers import MAGNETAR

_TIMEOUT_S = 500  # A quiet machine takes ten: a JVM, its Python workers, a small job.
_QUICK = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # It starts sooner, and ends soon.
}


class Server(Protocol):
    @property
    def url(self) -> str: ...

    @property
    def admin_url(self) -> str: ...


def pipeline(server: Server, *words: str) -> subprocess.CompletedProcess[str]:
    """To its end, whatever that is."""
    where = ("--url", server.url, "--admin-url", server.admin_url, "--master", "local[2]")
    quick = [word for name, value in _QUICK.items() for word in ("--spark", f"{name}={value}")]
    return subprocess.run(
        [*MAGNETAR, "pipeline", *words, *where, *quick],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
