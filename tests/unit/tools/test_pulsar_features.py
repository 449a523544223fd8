"""docs/pulsar-features.md names tests: they exist, and those of the features suite are all named."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.rows import every_row

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "pulsar-features.md").read_text()
SUITE = ROOT / "tests" / "integration" / "pulsar" / "features"
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE)))


def functions_of(path: Path) -> set[str]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, functions)}


@every_row(("file", "name"), NAMED, ids=lambda part: part.rpartition("/")[2])
def test_a_test_that_the_page_names_exists(file: str, name: str) -> None:
    assert name in functions_of(ROOT / file)


def test_every_test_of_the_features_suite_is_named() -> None:
    suite = {(str(path.relative_to(ROOT)), name) for path in SUITE.glob("test_*.py") for name in functions_of(path)}
    assert {(file, name) for file, name in suite if name.startswith("test_")} - set(NAMED) == set()


def test_every_row_of_the_page_names_a_test() -> None:
    heads = ("| Feature", "| What happens")
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith(heads)]
    assert len(rows) > 60
    assert [row for row in rows if ".py::" not in row] == []
