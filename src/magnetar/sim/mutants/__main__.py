"""python -m magnetar.sim.mutants: is the simulator able to find bugs?

The exit code is 0 if every planted bug was caught within its budget and the controls are clean, otherwise 1.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time

from rich.console import Console
from rich.table import Table

from magnetar.sim.mutants.hunt import CONTROLS, Hunt, hunt_all, run_one, workers
from magnetar.sim.mutants.registry import MUTANTS

# --- the table of what was found --------------------------------------------------------------------------------------


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


# --- the command ------------------------------------------------------------------------------------------------------


_WIDTH = 200  # The width of a table that goes to a file.


def main() -> int:
    chosen = _arguments()
    console = Console(width=None if sys.stdout.isatty() else _WIDTH, highlight=False)
    try:
        return _replay(chosen, console) if chosen.seed is not None else _hunt_all(chosen, console)
    except KeyboardInterrupt:
        console.print("stopped; what was under way is not in the table")
        return 130


def _hunt_all(chosen: argparse.Namespace, console: Console) -> int:
    began = time.monotonic()
    numbers = chosen.numbers or [*MUTANTS, *CONTROLS]
    budgets = {number: _budget(number, chosen.control) for number in numbers}
    if chosen.seeds:  # A bug without a budget is found by its scene alone.
        budgets = {number: chosen.seeds if budget else 0 for number, budget in budgets.items()}

    def on_ended(ended: Hunt) -> None:
        console.print(" | ".join(row(ended)), soft_wrap=True)

    with workers(chosen.workers) as pool:
        hunts = asyncio.run(hunt_all(budgets, chosen.first, pool, chosen.workers, on_ended))
    console.print(hunts_table(hunts))
    bad = [ended for ended in hunts if not is_good(ended)]
    console.print(f"{len(hunts) - len(bad)} of {len(hunts)} as they should be, in {time.monotonic() - began:.0f} s")
    for ended in bad:
        seed = chosen.first if ended.catch is None else ended.catch.seed
        console.print(f"look closer: python -m magnetar.sim.mutants {ended.number} --seed {seed} --trace")
    return 1 if bad else 0


def _budget(number: int, control: int) -> int:
    """The other controls have a third of the seeds of ledgers: each seed is as much work as three of those."""
    if number in CONTROLS:
        return control if CONTROLS[number] == "ledgers" else max(1, control // 3)
    return MUTANTS[number].budget


def _replay(chosen: argparse.Namespace, console: Console) -> int:
    """One seed with its bug; what is violated goes to the end of the trace."""
    for number in chosen.numbers:
        trace = (lambda line: console.print(line, soft_wrap=True, markup=False)) if chosen.trace else None
        report = run_one(number, chosen.seed, trace)
        console.print(f"{number}, seed {report.seed}: {report.options}", soft_wrap=True, markup=False)
        for violation in report.violations:
            console.print(str(violation), soft_wrap=True, markup=False)
        console.print(report.failure or f"{len(report.violations)} violations", soft_wrap=True, markup=False)
    return 0


def _number(text: str) -> int:
    if text not in map(str, [*MUTANTS, *CONTROLS]):
        raise argparse.ArgumentTypeError(f"there is no planted bug {text}; there are {', '.join(map(str, MUTANTS))}")
    return int(text)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m magnetar.sim.mutants", description=__doc__)
    parser.add_argument(
        "numbers",
        nargs="*",
        type=_number,
        metavar="NUMBER",
        help="0: the control; -1: that of topics; -2: of staging; -3: of bundles",
    )
    parser.add_argument("--from", dest="first", type=int, default=1, metavar="SEED", help="the first seed")
    parser.add_argument("--seeds", type=int, metavar="N", help="so many seeds instead of each one's budget")
    parser.add_argument("--control", type=int, default=300, metavar="N", help="seeds without any bug, all clean")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, metavar="N", help="processes")
    parser.add_argument("--seed", type=int, metavar="SEED", help="only this seed, once, and what it violates")
    parser.add_argument("--trace", action="store_true", help="with --seed: everything that happens")
    chosen = parser.parse_args()
    if chosen.seed is not None and not chosen.numbers:
        parser.error("--seed needs the number of a planted bug (0: none)")
    return chosen


if __name__ == "__main__":
    sys.exit(main())
