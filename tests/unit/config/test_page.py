"""docs/configuration.md is what the dataclasses say."""

from __future__ import annotations

import os
import subprocess
import sys

from magnetar.config.load import load
from magnetar.config.root import KEYS
from tools import generate_docs


def test_the_pages_on_disk_are_what_the_code_generates() -> None:
    for path, text in generate_docs.pages().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is out of date: run make docs"


def test_the_page_lists_every_key_with_its_names_elsewhere() -> None:
    page = generate_docs.configuration_page()
    for key in KEYS.values():
        section = page.partition(f"\n## [{key.section}]")[2].partition("\n## ")[0]
        row = next(line for line in section.splitlines() if line.startswith(f"| `{key.name}` |"))
        assert all(f"`{name}`" in row for name in key.knob.peer_names)
        assert row.count(" | ") == 6


def test_the_example_on_the_page_is_a_valid_configuration() -> None:
    effective = load(toml=generate_docs.EXAMPLE, toml_name="the example")
    assert effective.config.zookeeper.tls


def test_check_fails_when_a_page_is_out_of_date(tmp_path: object) -> None:
    program = (
        f"import pathlib; from tools import generate_docs as g; g.ROOT = pathlib.Path({str(tmp_path)!r}); g.main()"
    )

    def run(*arguments: str) -> int:
        return subprocess.run(
            [sys.executable, "-c", program, *arguments],
            cwd=generate_docs.ROOT,
            env=os.environ,
            capture_output=True,
            timeout=60,
        ).returncode

    assert run("--check") == 1
    assert run() == 0
    assert run("--check") == 0
