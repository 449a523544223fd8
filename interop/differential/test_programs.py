"""Programs that once differed, and random ones by fixed seeds, on both servers: each of them is a check.

One that differs three times fails; one that differs once is printed and does not: a busy machine divides the work of a
client differently. All of them run at once, in a process of their own, which is started once more if the C++ client
ends it: it aborts now and then when connections break. `python -m interop.differential` hunts with new seeds.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from interop.differential.__main__ import stored_program
from interop.differential.generate import generate

PROGRAMS = Path(__file__).with_name("programs")
SEEDS = range(1, 11)  # With both servers' starts, less than two minutes on two slow cores.
STORED = sorted(PROGRAMS.glob("*.txt"))
NAMES = [program.name for program in (*map(stored_program, STORED), *map(generate, SEEDS))]
_ROOT = Path(__file__).resolve().parents[2]
_TIMEOUT_S = 1800
_ATTEMPTS = 2


@pytest.fixture(scope="package")
def problems(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """By program: what is wrong with it, or nothing."""
    answers = tmp_path_factory.mktemp("differential") / "problems.json"
    seeds = ["--seed", str(SEEDS[0]), "--seeds", str(len(SEEDS))]
    programs = ["--program", *STORED]
    command = [sys.executable, "-m", "interop.differential", "--problems", answers, *seeds, *programs]
    said = ""
    for _ in range(_ATTEMPTS):
        done = subprocess.run(command, cwd=_ROOT, timeout=_TIMEOUT_S, capture_output=True, text=True, check=False)
        said += done.stdout + done.stderr
        if done.returncode >= 0:
            break
    assert answers.exists(), f"the programs ended with {done.returncode} before all had run:\n{said}"
    found: dict[str, str] = json.loads(answers.read_text())
    return found


@pytest.mark.parametrize("name", NAMES)
def test_both_servers_show_the_same(problems: dict[str, str], name: str) -> None:
    assert problems.get(name, "it was not run") == ""
