"""A million mutated inputs, shared by all fuzz targets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fuzz.engine import FindingError, run
from fuzz.targets import all_targets

INPUTS = 1_000_000
FINDINGS = Path("build/fuzz")  # Outlives the run's own directory: a finding is there to be replayed.


def soak(seed: int, _directory: Path) -> dict[str, Any]:
    targets = list(all_targets().values())
    inputs = past_header = 0
    found: list[str] = []
    for target in targets:
        try:
            report = run(target, seed, inputs=-(-INPUTS // len(targets)))
        except FindingError as finding:
            found.append(f"{finding}; replay: python -m fuzz {target.name} --replay {finding.keep(FINDINGS)}")
            continue
        print(f"  {report}", flush=True)
        inputs += report.inputs
        past_header += report.past_header
    deep_enough = past_header * 2 >= inputs
    return {"inputs": inputs, "past_header": past_header, "found": found, "passed": not found and deep_enough}
