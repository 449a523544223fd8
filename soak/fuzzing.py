"""A million mutated frames, shared by all decoders of the wire protocol; and some thousands for each other decoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fuzz import bookkeeper_frames
from fuzz.engine import FindingError, Report, Target, run
from fuzz.targets import all_targets

FRAMES = 1_000_000
"""For the decoders of frames together, those that a peer can send to without having been let in."""
OTHER_INPUTS = 10_000
"""For each of the others: what they read, we wrote ourselves, or an operator did."""
FINDINGS = Path("build/fuzz")  # Outlives the run's own directory: a finding is there to be replayed.


def soak(seed: int, _directory: Path) -> dict[str, Any]:
    of_the_wire = [target.name for target in bookkeeper_frames.targets()]
    reports: dict[str, Report] = {}
    found: list[str] = []
    for name, target in all_targets().items():
        inputs = -(-FRAMES // len(of_the_wire)) if name in of_the_wire else OTHER_INPUTS
        try:
            reports[name] = _reported(target, seed, inputs)
        except FindingError as finding:
            found.append(f"{finding}; replay: python -m fuzz {name} --replay {finding.keep(FINDINGS)}")
    frames = [reports[name] for name in of_the_wire if name in reports]
    past_header = sum(report.past_header for report in frames)
    count = sum(report.inputs for report in frames)
    return {
        "inputs": sum(report.inputs for report in reports.values()),
        "frames": count,
        "frames_past_header": past_header,
        "found": found,
        "passed": not found and past_header * 2 >= count,
    }


def _reported(target: Target, seed: int, inputs: int) -> Report:
    report = run(target, seed, inputs=inputs)
    print(f"  {report}", flush=True)
    return report
