"""A row of the benchmark, the table for people, and `build/bench.json` for programs.

`ratio` is written so that more is better for both kinds: ours / theirs where higher is better, theirs / ours where
lower is. `floor` is a contract, `goal` an aim.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Literal

from rich.console import Console
from rich.table import Table

Better = Literal["higher", "lower"]


@dataclass(frozen=True, slots=True)
class Side:
    """The samples of one contestant: what was measured, and the CPU seconds per second of what made the load."""

    samples: tuple[float, ...]
    generator_cpu: tuple[float, ...]

    @property
    def value(self) -> float:
        return median(self.samples)

    @property
    def spread(self) -> float:
        """(highest − lowest) / median."""
        return (max(self.samples) - min(self.samples)) / self.value if self.value else 0.0

    @property
    def cpu(self) -> float:
        return median(self.generator_cpu)


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    unit: str
    better: Better
    ours: Side
    peer: str
    theirs: Side
    goal: float | None = None
    floor: float | None = None
    detail: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """What was seen beside it, ours and theirs: latency, CPU, memory. For information."""

    @property
    def ratio(self) -> float:
        ours, theirs = self.ours.value, self.theirs.value
        return ours / theirs if self.better == "higher" else theirs / ours

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.name, "unit": self.unit, "better": self.better, "ours": self.ours.value, "peer": self.peer,
            "theirs": self.theirs.value, "ratio": round(self.ratio, 3), "goal": self.goal, "floor": self.floor,
            "ours_detail": asdict(self.ours), "theirs_detail": asdict(self.theirs),
            "detail": {what: {"ours": ours, "theirs": theirs} for what, (ours, theirs) in self.detail.items()},
        }  # fmt: skip


def print_table(rows: list[Row]) -> None:
    table = Table(title="benchmarks: medians of interleaved samples, ± spread; ratio: more is better")
    for column in ("row", "unit", "ours", "peer", "theirs", "ratio", "goal", "generator CPU ours / theirs"):
        table.add_column(column, justify="left" if column in ("row", "unit", "peer") else "right", no_wrap=True)
    for row in rows:
        goal = "" if row.goal is None else f"{row.goal:g} ×"
        reached = "" if row.goal is None else ("[green]" if row.ratio >= row.goal else "[red]")
        table.add_row(
            row.name, row.unit, _figure(row.ours), row.peer, _figure(row.theirs), f"{reached}{row.ratio:.2f} ×", goal,
            f"{row.ours.cpu:.2f} / {row.theirs.cpu:.2f}",
        )  # fmt: skip
    console = Console(width=None if Console().is_terminal else 160)
    console.print(table)
    for row in rows:
        if row.detail:
            console.print(f"{row.name}: {_detail(row)}", soft_wrap=True, highlight=False)


def _figure(side: Side) -> str:
    return f"{side.value:,.4g} ±{side.spread:.0%}" if side.value < 1000 else f"{side.value:,.0f} ±{side.spread:.0%}"


def _detail(row: Row) -> str:
    return "; ".join(f"{what} {ours:,.4g} / {theirs:,.4g}" for what, (ours, theirs) in row.detail.items())


def write_json(rows: list[Row], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([row.as_json() for row in rows], indent=2) + "\n")
