"""`python -m interop [part]`: runs the checks of one part, or of all; the last line is `N passed, M failed`."""

from __future__ import annotations

import argparse
import importlib
import sys

from interop.runner import Part, Suite, run_parts

PARTS = ("metadata", "bookie", "ledger", "pulsar", "spark")


def _parts_of(name: str) -> list[Part | Suite]:
    """A folder has one part, or one for each make of server that its checks run on."""
    module = importlib.import_module(f"interop.{name}.part")
    return module.PARTS if hasattr(module, "PARTS") else [module.PART]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m interop", description=__doc__)
    parser.add_argument("part", nargs="?", choices=PARTS, help="only this part; else all")
    parser.add_argument("--check", default="", metavar="WORDS", help="only checks whose name has these words in it")
    arguments = parser.parse_args()
    names = [arguments.part] if arguments.part else PARTS
    return run_parts([part for name in names for part in _parts_of(name)], arguments.check)


if __name__ == "__main__":
    sys.exit(main())
