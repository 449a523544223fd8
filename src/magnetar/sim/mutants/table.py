"""What the hunts found, as a table to read."""

from __future__ import annotations

from rich.table import Table

from magnetar.sim.mutants.hunt import CONTROLS, Hunt
from magnetar.sim.mutants.registry import MUTANTS


def verdict(hunt: Hunt) -> str:
    """`caught`, or what is wrong: with the simulator, not with the bug."""
    if hunt.number in CONTROLS:
        return "clean" if hunt.catch is None else f"NOT CLEAN: seed {hunt.catch.seed}: {hunt.catch.what}"
    if hunt.catch is None:
        is_for_a_scene = not MUTANTS[hunt.number].budget and hunt.played is not None and hunt.played.is_good
        return "caught" if is_for_a_scene else "NOT CAUGHT"
    if hunt.is_false:
        return f"NOT CAUGHT: seed {hunt.catch.seed} is not clean without the bug either"
    if hunt.played is not None and not hunt.played.is_good:
        return f"THE DIRECTED RUN FAILS: {hunt.played}"
    expected = MUTANTS[hunt.number].caught_by
    return "caught" if any(name in expected for name in hunt.catch.invariants) else "caught by another"


def is_good(hunt: Hunt) -> bool:
    return verdict(hunt) in ("clean", "caught", "caught by another")


def hunts_table(hunts: list[Hunt]) -> Table:
    table = Table(title="Planted bugs")
    table.add_column("#", justify="right")
    table.add_column("mutation", max_width=56)
    table.add_column("expected")
    table.add_column("caught by")
    table.add_column("seeds", justify="right")
    table.add_column("directed", justify="right")
    table.add_column("budget", justify="right")
    table.add_column("time", justify="right")
    table.add_column("verdict", max_width=50)
    for hunt in hunts:
        table.add_row(*row(hunt), style=None if is_good(hunt) else "bold red")
    return table


def row(hunt: Hunt) -> tuple[str, ...]:
    seeds, elapsed = str(hunt.seeds), f"{hunt.elapsed_s:.1f} s, {hunt.cpu_s:.1f} CPU"
    if hunt.number in CONTROLS:
        return "–", f"none: the control of {CONTROLS[hunt.number]}", "–", "–", seeds, "", seeds, elapsed, verdict(hunt)
    mutant = MUTANTS[hunt.number]
    caught = ", ".join(hunt.catch.invariants) if hunt.catch is not None else "–"
    expected = ", ".join(mutant.caught_by)
    played = "" if hunt.played is None else f"{hunt.played.shown} of {hunt.played.seeds}"
    budget = str(mutant.budget)
    return str(mutant.number), mutant.sentence, expected, caught, seeds, played, budget, elapsed, verdict(hunt)
