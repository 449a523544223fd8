"""Runs the parts, prints the table, writes build/bench.json. Exits 1 for a row below its floor, never for a goal."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from bench import admin, autorecovery, bookie, cli, cluster, kafka, ledger, metadata, pulsar, spark
from bench.report import Row, print_table, write_json

PARTS: dict[str, Callable[[], list[Row]]] = {
    "admin": admin.run,
    "autorecovery": autorecovery.run,
    "bookie": bookie.run,
    "cli": cli.run,
    "cluster": cluster.run,
    "kafka": kafka.run,
    "ledger": ledger.run,
    "metadata": metadata.run,
    "pulsar": pulsar.run,
    "spark": spark.run,
}
RESULT = Path("build/bench.json")


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench")
    parser.add_argument("part", nargs="?", choices=sorted(PARTS), help="only this part")
    arguments = parser.parse_args()
    rows = [row for part in ([arguments.part] if arguments.part else sorted(PARTS)) for row in PARTS[part]()]
    print_table(rows)
    write_json(rows, RESULT)
    print(f"written to {RESULT}")
    for row in rows:
        if row.goal is not None and row.ratio < row.goal:
            print(f"below its goal: {row.name} reached {row.ratio:.2f} × of {row.goal:g} ×")
    broken = [row.name for row in rows if row.floor is not None and row.ratio < row.floor]
    if broken:
        sys.exit(f"below the floor: {', '.join(broken)}")


if __name__ == "__main__":
    main()
