"""Finds the first seed that catches a planted bug."""

from __future__ import annotations

from magnetar.sim.mutants.hunt import Catch, look


def first_catch(number: int, first: int, count: int) -> Catch | None:
    """Looks at up to `count` seeds, one after the other."""
    catches = (look(number, seed).catch for seed in range(first, first + count))
    return next((catch for catch in catches if catch is not None), None)
