"""Where every generator of the simulator is made: from a text that names the run and the purpose."""

from __future__ import annotations

from random import Random


def seeded(seed: str) -> Random:
    """Equal texts give equal choices, on every machine and in every process."""
    return Random(seed)
