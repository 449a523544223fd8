"""Times as Pulsar's JSON and headers write them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from magnetar.runtime.entropy import Entropy


def iso(wall_ms: int) -> str:
    return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def with_offset(wall_ms: int) -> str:
    """As in headers of messages: `2026-01-31T10:00:00.000Z`, which Pulsar's clients parse, too."""
    return iso(wall_ms)


def wall_ms_of(loop_s: float | None, entropy: Entropy) -> int:
    """The wall time of a moment on the loop's clock; 0 if it never was."""
    if loop_s is None:
        return 0
    return entropy.wall_ms() - round((asyncio.get_running_loop().time() - loop_s) * 1000)
