"""Each house rule catches what it is for and leaves the allowed neighbour alone; the real tree is clean."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from tests.rows import every_row
from tools import house_rules
from tools.house_rules import check_source, check_tree

PRODUCTION = "bookie/journal.py"


def rules_broken_by(text: str, path: str = PRODUCTION) -> list[str]:
    return sorted({finding.rule for finding in check_source(dedent(text), path)})


BROKEN = {
    "clock": [
        "import time",
        "from time import monotonic as clock",
        "def f():\n    import time\n    return time.time()",
        "import datetime\nx = datetime.datetime.now()",
        "from datetime import datetime as dt, UTC\nx = dt.now(UTC)",
        "from datetime import datetime\nx = datetime.utcnow()",
        "from datetime import date\nx = date.today()",
        "from datetime import datetime\nclock = datetime.now",
    ],
    "randomness": [
        "import random",
        "import random as chance",
        "from random import choice",
        "from random import Random\nx = Random(5)",
        "import secrets",
        "import os\nx = os.urandom(8)",
        "from os import urandom",
        "import uuid",
        "from uuid import uuid4",
        "from uuid import uuid1 as make",
    ],
    "thread": [
        "import threading",
        "from concurrent.futures import ThreadPoolExecutor",
        "import concurrent.futures as futures",
        "import multiprocessing",
        "import queue",
        "async def f(loop):\n    await loop.run_in_executor(None, print)",
        "import asyncio\nasync def f():\n    await asyncio.to_thread(print)",
        "from asyncio import to_thread",
    ],
    "process": [
        "import subprocess",
        "import signal",
        "import asyncio\nasync def f():\n    await asyncio.create_subprocess_exec('ls')",
    ],
    "file": [
        "x = open('a')",
        "import io\nx = io.open('a')",
        "import os\nos.unlink('a')",
        "from os import replace",
        "import os as system\nsystem.fsync(3)",
        "import os\nx = os.path.exists('a')",
        "from os.path import getsize",
        "from pathlib import Path\nx = Path('a').read_text()",
        "from pathlib import Path\nx = Path('a').open()",
        "from pathlib import Path\ndef f(p: Path):\n    return p.exists()",
        "from pathlib import Path\ndef f():\n    p = Path('a')\n    p.rename('b')",
        "from pathlib import Path\nclass A:\n    p: Path\n    def f(self):\n        return self.p.stat()",
        "import shutil",
        "import tempfile",
        "import fcntl",
        "import mmap",
    ],
    "socket": ["import socket", "from socket import AF_INET", "import selectors", "from urllib.request import urlopen"],
    "foreign-library": ["import sqlite3", "from kazoo.client import KazooClient"],
    "pickle": ["import pickle", "from marshal import dumps", "import shelve"],
    "finalizer": ["class A:\n    def __del__(self):\n        pass"],
    "set-order": [
        "for x in {1, 2}:\n    print(x)",
        "for x in set(y):\n    print(x)",
        "x = [a for a in frozenset(y)]",
        "x = {a: 1 for a in {b for b in y}}",
        "x = list({1, 2})",
        "x = tuple(set(y))",
        "x = next(iter({1}))",
        "x = ','.join({'a', 'b'})",
        "f(*{1, 2})",
        "def f(x: set[int]):\n    for y in x:\n        print(y)",
        "def f(x: frozenset[int] | None):\n    return [y for y in x]",
        "from collections.abc import Set\ndef f(x: Set[int]):\n    return [y for y in x]",
        "def f():\n    x: set[int] = make()\n    return list(x)",
        "def f(y):\n    x = set(y)\n    z = x - {1}\n    return [a for a in z]",
        "def f(a, b):\n    return [x for x in a.keys() - b.keys()]",
        "def f(a: set[int], b):\n    return [x for x in a.union(b)]",
        "def f(a: set[int]):\n    return a.pop()",
        "class A:\n    x: set[int]\n    def f(self):\n        return [y for y in self.x]",
        "class A:\n    def __init__(self):\n        self.x: set[int] = y\n    def f(self):\n        list(self.x)",
        "class A:\n    def f(self):\n        return list(self.x)\n    def __init__(self):\n        self.x = set()",
        "async def f():\n    for x in {1, 2}:\n        await x",
        "NAMES = frozenset({'a'})\ndef f():\n    return [x for x in NAMES]",
    ],
    "address-order": [
        "x = sorted(y, key=id)",
        "y.sort(key=hash)",
        "x = min(y, key=lambda one: (one.a, id(one)))",
    ],
    "as-completed": [
        "import asyncio\nasync def f():\n    for x in asyncio.as_completed([g(1), g(2)]):\n        await x",
        "from asyncio import as_completed\nasync def f():\n    for x in as_completed(g(y) for y in z):\n        x()",
    ],
}


@every_row(("rule", "text"), [(rule, text) for rule, texts in BROKEN.items() for text in texts])
def test_planted_violation_is_found(rule: str, text: str) -> None:
    assert rules_broken_by(text) == [rule]


@pytest.mark.parametrize(
    "text",
    [
        "from random import Random\ndef f(random: Random) -> float:\n    return random.random()",
        "from uuid import UUID\nx = UUID('12345678123456781234567812345678')",
        "from datetime import datetime, UTC\nx = datetime.fromtimestamp(5, UTC)",
        "def f(disk, entropy):\n    return disk.open('a'), disk.rename('a', 'b'), entropy.random.choice([1])",
        "import os\nx = os.environ.get('A')\ny = os.path.join('a', 'b')\nz = os.strerror(5)",
        "from pathlib import PurePosixPath\nx = PurePosixPath('a').name",
        "import asyncio\nasync def f(loop):\n    await asyncio.sleep(1)\n    return loop.time()",
        "class A:\n    time = 1\n    def f(self):\n        return self.time",
    ],
)
def test_what_goes_through_the_seam_is_allowed(text: str) -> None:
    assert rules_broken_by(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "for x in sorted({1, 2}):\n    print(x)",
        "def f(x: set[int]):\n    return sorted(x), len(x), 3 in x, x | {1}, min(x), any(y > 1 for y in x)",
        "def f(x: set[int]):\n    return sorted(y + 1 for y in x), {y + 1 for y in x}, {*x, 5}, sum([y for y in x])",
        "def f(x: dict[int, int]):\n    return list(x), [y for y in x.keys()], x.pop(1)",
        "def f(x: list[int]):\n    return x.pop(), [y for y in x]",
        "def f(x: list[set[int]]):\n    return [y for y in x]",
        "x = sorted(y, key=lambda one: one.identity)",
        "import asyncio\nasync def f(tg):\n    for x in asyncio.as_completed([tg.create_task(g(1))]):\n        await x",
    ],
)
def test_use_of_a_set_that_does_not_show_its_order_is_allowed(text: str) -> None:
    assert rules_broken_by(text) == []


@pytest.mark.parametrize("folder", sorted(house_rules.EXEMPT))
def test_exempt_folder_may_touch_the_world(folder: str) -> None:
    text = "import time, threading, socket, os\nx = open('a')\ny = os.getpid()\nfor z in {1, 2}:\n    print(z)"
    assert rules_broken_by(text, f"{folder}/a.py") == []


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("blocking-in-async", "import time\nasync def f():\n    time.sleep(1)"),
        ("blocking-in-async", "from time import sleep as pause\nasync def f():\n    pause(1)"),
        ("blocking-in-async", "import subprocess\nasync def f():\n    subprocess.run(['ls'])"),
        ("unsorted-listing", "import os\nx = os.listdir('.')"),
        ("unsorted-listing", "def f(p):\n    for x in p.iterdir():\n        print(x)"),
        ("pickle", "import pickle"),
        ("finalizer", "class A:\n    def __del__(self):\n        pass"),
    ],
)
def test_some_rules_hold_even_in_exempt_folders(rule: str, text: str) -> None:
    assert rules_broken_by(text, "testing/a.py") == [rule]
    assert rule in rules_broken_by(text)


@pytest.mark.parametrize(
    "text",
    [
        "import time\ndef f():\n    time.sleep(1)",
        "import time\nasync def f():\n    def inner():\n        time.sleep(1)\n    return inner, lambda: time.sleep(1)",
        "import os\nx = sorted(os.listdir('.'))",
        "def f(p):\n    return sorted(x.name for x in p.iterdir()), any(p.glob('*.py'))",
    ],
)
def test_neighbours_of_those_rules_are_allowed(text: str) -> None:
    assert rules_broken_by(text, "testing/a.py") == []


def test_exception_holds_for_its_files_and_its_module_only() -> None:
    assert rules_broken_by("import sqlite3", "metadata/sqlite.py") == []
    assert rules_broken_by("import sqlite3", "metadata/memory.py") == ["foreign-library"]
    assert rules_broken_by("import sqlite3", "bookie/sqlite.py") == ["foreign-library"]
    assert rules_broken_by("import sqlite3, time", "metadata/sqlite.py") == ["clock"]
    assert rules_broken_by("from kazoo.client import KazooClient", "metadata/zookeeper/store.py") == []


def test_finding_has_the_line_and_says_what_to_do() -> None:
    (finding,) = check_source("x = 1\ny = open('a')\n", PRODUCTION)
    assert finding.line == 2
    assert "take a Disk from runtime/" in finding.message


def test_command_prints_place_and_rule_and_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bookie").mkdir()
    (tmp_path / "bookie" / "a.py").write_text("import time\n")
    assert [line.split(": ")[:2] for line in check_tree(tmp_path)] == [[f"{tmp_path}/bookie/a.py:1", "clock"]]
    monkeypatch.setattr(house_rules, "check_tree", lambda: check_tree(tmp_path))
    assert house_rules.main() == 1
    assert "bookie/a.py:1: clock: time: use loop.time()" in capsys.readouterr().out


def test_real_tree_is_clean() -> None:
    assert check_tree() == []
