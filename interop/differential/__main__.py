"""`python -m interop.differential [--minutes N] [--seed N] [--seeds N] [--program FILE ...]`: hunts for differences."""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from interop.differential.generate import generate
from interop.differential.hunt import hunt, open_servers, scratch
from interop.differential.program import Program, parse


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m interop.differential", description=__doc__)
    parser.add_argument("--minutes", type=float, help="run programs of one seed after another for this long")
    parser.add_argument("--seed", type=int, help="the first seed; otherwise a random one, which is printed")
    parser.add_argument("--seeds", type=int, default=1, help="how many programs; the seeds follow each other")
    parser.add_argument("--program", type=Path, nargs="*", default=[], help="run these files, and then the seeds")
    parser.add_argument("--no-shrinking", action="store_true", help="print programs that differ as they are")
    parser.add_argument("--trace", action="store_true", help="print what both servers show after each step")
    parser.add_argument("--problems", type=Path, help="write what each program shows to this file, as JSON")
    arguments = parser.parse_args(words)
    if arguments.program and arguments.seed is None:
        arguments.seeds = 0
    with scratch() as directory, open_servers(directory) as servers:
        if arguments.trace:
            servers.trace = functools.partial(print, flush=True)
        began = time.monotonic()

        def continues() -> bool:
            return arguments.minutes is None or time.monotonic() - began < arguments.minutes * 60

        tally = hunt(servers, _programs(arguments), continues, shrinking=not arguments.no_shrinking)
        seconds = time.monotonic() - began
    print(
        f"{tally.programs} programs, {tally.steps} steps in {seconds:.0f} s: {tally.differing} differ, "
        f"{tally.unrepeated} differed once only, {tally.broken} could not be run",
        flush=True,
    )
    if arguments.problems:
        arguments.problems.write_text(json.dumps(tally.problems))
    return 1 if tally.differing or tally.broken else 0


def _programs(arguments: argparse.Namespace) -> Iterator[Program]:
    for path in arguments.program:
        yield stored_program(path)
    if not arguments.seeds and arguments.minutes is None:
        return
    first = arguments.seed if arguments.seed is not None else random.randrange(10**9)
    print(f"seed {first}", flush=True)
    seeds = itertools.count(first)
    yield from map(generate, seeds if arguments.minutes is not None else itertools.islice(seeds, arguments.seeds))


def stored_program(path: Path) -> Program:
    return parse(path.read_text(), path.stem.replace("_", " "))


if __name__ == "__main__":
    sys.exit(main())
