"""`python -m interop.bookie apache`: the checks on the bookies of one make only."""

from __future__ import annotations

import argparse
import sys

from interop.bookie.part import MAKES, part_on
from interop.runner import run_parts


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m interop.bookie", description=__doc__)
    parser.add_argument("make", choices=sorted(MAKES), help="whose bookies")
    parser.add_argument("--check", default="", metavar="WORDS", help="only checks whose name has these words in it")
    arguments = parser.parse_args()
    return run_parts([part_on(arguments.make)], arguments.check)


if __name__ == "__main__":
    sys.exit(main())
