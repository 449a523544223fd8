"""`python -m fuzz [target] [--seconds 20 | --inputs N] [--seed S] [--replay FILE]`"""

from __future__ import annotations

import argparse
import secrets
import sys
from pathlib import Path

from fuzz.engine import FindingError, Target, run, try_one
from fuzz.targets import all_targets

FINDINGS = Path("build/fuzz")
DEFAULT_SECONDS = 20.0  # Per run, shared by the targets.


def main(arguments: list[str] | None = None) -> int:
    targets = all_targets()
    parser = argparse.ArgumentParser(prog="python -m fuzz", description="Mutated input against every decoder.")
    parser.add_argument("target", nargs="?", choices=sorted(targets), help="only this one; else all in turn")
    parser.add_argument("--seconds", type=float, help=f"for all targets together (default {DEFAULT_SECONDS:g})")
    parser.add_argument("--inputs", type=int, help="for each target, instead of a time")
    parser.add_argument("--seed", type=int, help="what a former run printed, to have the same inputs again")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="only this input, which needs its target named")
    options = parser.parse_args(arguments)
    chosen = [targets[options.target]] if options.target else list(targets.values())
    if options.replay:
        if not options.target:
            parser.error("--replay needs the target's name")
        return _replay(chosen[0], options.replay)
    seed = secrets.randbelow(2**32) if options.seed is None else options.seed
    seconds = options.seconds if options.inputs is None else None
    if options.inputs is None and seconds is None:
        seconds = DEFAULT_SECONDS
    print(f"seed {seed}", flush=True)
    return _run_all(chosen, seed, options.inputs, None if seconds is None else seconds / len(chosen))


def _run_all(targets: list[Target], seed: int, inputs: int | None, seconds: float | None) -> int:
    for target in targets:
        try:
            print(run(target, seed, inputs=inputs, seconds=seconds), flush=True)
        except FindingError as finding:
            kept = finding.keep(FINDINGS)
            print(f"FOUND {finding}\n  again: python -m fuzz {target.name} --replay {kept}", flush=True)
            return 1
    return 0


def _replay(target: Target, path: Path) -> int:
    try:
        accepted = try_one(target, path.read_bytes())
    except FindingError as finding:
        print(f"FOUND {finding}")
        print(f"  cause: {finding.__cause__!r}")
        return 1
    print(f"{target.name}: {'accepted' if accepted else 'refused as it should be'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
