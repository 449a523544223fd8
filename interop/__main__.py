"""`python -m interop [part]`: runs the checks of one part, or of all; the last line is `N passed, M failed`.

One part runs in this process. Of all parts each is a process, and some run beside each other (beside.py).
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

import pytest

from interop.beside import run_beside
from interop.jars import BOOKKEEPER, KAFKA, PULSAR, PULSAR_ADMIN, Jars, class_folder
from magnetar.errors import MagnetarError

PARTS: dict[str, tuple[Jars, ...]] = {
    "metadata": (BOOKKEEPER,),
    "bookie": (BOOKKEEPER,),
    "ledger": (BOOKKEEPER,),
    "autorecovery": (BOOKKEEPER,),
    "pulsar": (PULSAR, PULSAR_ADMIN),
    "cluster": (BOOKKEEPER, PULSAR),
    "differential": (PULSAR,),
    "kafka": (KAFKA,),
    "spark": (),
}
"""Each part is a folder of tests, and needs these of Apache's classes."""
_LONGEST = ("spark",)
_HERE = Path(__file__).resolve().parent


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m interop", description=__doc__)
    parser.add_argument("part", nargs="?", choices=PARTS, help="only this part; otherwise all")
    parser.add_argument("--check", default="", metavar="WORDS", help="only checks whose name has these words in it")
    parser.add_argument("--minutes", type=float, help="of the differential part: hunt with new seeds for this long")
    parser.add_argument("--seed", type=int, help="of the differential part: run this seed, or begin with it")
    arguments = parser.parse_args()
    if arguments.minutes is not None or arguments.seed is not None:
        if arguments.part != "differential":
            parser.error("--minutes and --seed belong to the differential part: python -m interop differential ...")
        return importlib.import_module("interop.differential.__main__").main(_hunt(arguments))
    if arguments.part:
        return run(arguments.part, arguments.check)
    command = [sys.executable, "-m", "interop", f"--check={arguments.check}"]
    return run_beside({part: [*command, part] for part in PARTS}, first=_LONGEST)


def run(part: str, words: str) -> int:
    """Returns the exit code. What has to be downloaded is downloaded first: it takes minutes, and says so."""
    try:
        for jars in PARTS[part]:
            class_folder(jars)
    except MagnetarError as error:
        print(f"interop: nothing can be checked: {error}", file=sys.stderr)
        return 1
    return int(pytest.main([str(_HERE / part), f"--check={words}"]))


def _hunt(arguments: argparse.Namespace) -> list[str]:
    given = {"--minutes": arguments.minutes, "--seed": arguments.seed}
    return [word for flag, value in given.items() if value is not None for word in (flag, str(value))]


if __name__ == "__main__":
    sys.exit(main())
