"""Pages of tables whose rows name tests: the tests exist, every row names one, and no test that belongs there lacks."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.rows import every_row

ROOT = Path(__file__).parents[3]
HEADS = {
    "pulsar-features.md": ("| Feature", "| What happens"),
    "formats.md": ("| Path or format", "| Golden bytes", "| What"),
}
"""Pages → how the first lines of their tables begin."""
PAGES = {name: (ROOT / "docs" / name).read_text() for name in HEADS}
SUITE = ROOT / "tests" / "integration" / "pulsar" / "features"
GOLDEN = ROOT / "tests" / "golden"


def named(page: str) -> set[tuple[str, str]]:
    return set(re.findall(r"`([\w/]+\.py)::(\w+)`", PAGES[page]))


def functions_of(path: Path) -> set[str]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, functions)}


def named_like_tests(path: Path) -> set[tuple[str, str]]:
    file = str(path.relative_to(ROOT))
    return {(file, name) for name in functions_of(path) if name.startswith("test_")}


def rows_of(page: str) -> list[str]:
    return [line for line in PAGES[page].splitlines() if line.startswith("| ") and not line.startswith(HEADS[page])]


@every_row(
    ("file", "name"),
    sorted(set().union(*map(named, PAGES))),
    ids=lambda part: part.rpartition("/")[2],
)
def test_a_test_that_a_page_names_exists(file: str, name: str) -> None:
    assert name in functions_of(ROOT / file)


def test_every_test_of_the_features_suite_is_named() -> None:
    suite = set().union(*(named_like_tests(path) for path in SUITE.glob("test_*.py")))
    assert suite - named("pulsar-features.md") == set()


def test_every_test_in_a_file_of_golden_tests_is_named() -> None:
    files = list((ROOT / "tests" / "unit").rglob("test_*golden*.py"))
    assert len(files) > 4
    assert set().union(*map(named_like_tests, files)) - named("formats.md") == set()


def test_every_file_of_golden_bytes_is_named() -> None:
    files = {str(path.relative_to(ROOT)) for path in GOLDEN.glob("*.json")}
    assert {file for file in files if f"`{file}`" not in PAGES["formats.md"]} == set()


def test_every_row_of_a_page_names_a_test() -> None:
    for page, fewest in (("pulsar-features.md", 60), ("formats.md", 35)):
        rows = rows_of(page)
        assert len(rows) > fewest
        assert [row for row in rows if ".py::" not in row] == []
