"""The lint of references finds signs that lead nowhere and leaves the others alone; the real tree is clean."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import doc_refs
from tools.doc_refs import check_page, check_source, check_tree


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("src/magnetar/ids.py", "src/magnetar/ledger/fence.py", "tools/lint.py", "docs/ledger.md", "README.md"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    return tmp_path


def missing_in_source(text: str, root: Path) -> list[str]:
    found = check_source(text, "src/magnetar/ledger/recovery.py", root)
    assert {finding.rule for finding in found} <= {"missing-file"}
    return [finding.message.split()[0] for finding in found]


def broken_in_page(text: str, root: Path, path: str = "docs/ledger.md") -> list[tuple[str, str]]:
    return [(finding.rule, finding.message.split()[0]) for finding in check_page(text, path, root)]


@pytest.mark.parametrize(
    "name",
    ["fence.py", "ids.py", "ledger/fence.py", "magnetar/ledger/fence.py", "src/magnetar/ids.py", "tools/lint.py"],
)
def test_name_is_looked_up_in_its_own_folder_the_package_and_the_root(name: str, root: Path) -> None:
    assert missing_in_source(f'"""Read next: {name}, (`{name}`); {name}."""', root) == []


@pytest.mark.parametrize("name", ["gone.py", "ledger/gone.py", "ledger/ids.py", "lint.py", "gone/__init__.py"])
def test_name_of_a_file_that_does_not_exist_is_found(name: str, root: Path) -> None:
    assert missing_in_source(f'"""Read next: {name}"""', root) == [name]


@pytest.mark.parametrize(
    "text",
    [
        'class A:\n    """As gone.py has it."""',
        'def f() -> None:\n    """As gone.py has it."""',
        'async def f() -> None:\n    """As gone.py has it."""',
        'class A:\n    x: int\n    """As gone.py has it."""',
    ],
)
def test_every_docstring_is_read(text: str, root: Path) -> None:
    assert missing_in_source(text, root) == ["gone.py"]


@pytest.mark.parametrize(
    "text",
    [
        '"""All test_*.py, <family>.py, {name}.py and setup.py."""',
        '"""Compiled: gone.pyc; typed: gone.pyi."""',
        'x = "gone.py"',
        "# See gone.py.",
    ],
)
def test_placeholders_other_files_and_code_are_not_references(text: str, root: Path) -> None:
    assert missing_in_source(text, root) == []


def test_page_names_a_file_with_its_folder_or_names_the_folder(root: Path) -> None:
    assert broken_in_page("`ledger/fence.py` and `ids.py`", root) == []
    assert broken_in_page("What is in `ledger/`: `fence.py`.", root) == []
    assert broken_in_page("Only `fence.py`.", root) == [("missing-file", "fence.py")]
    assert broken_in_page("What is in `ledger/`: `gone.py`.", root) == [("missing-file", "gone.py")]


def test_relative_link_must_resolve(root: Path) -> None:
    text = "[a](ledger.md) [b](ledger.md#part) [c](../README.md) [d](#here) [e](https://example.org/gone.md)"
    assert broken_in_page(text, root) == []
    assert broken_in_page("[a](gone.md#part)", root) == [("broken-link", "gone.md")]
    assert broken_in_page("[a](docs/gone.md)", root, "README.md") == [("broken-link", "docs/gone.md")]


def test_link_to_a_module_is_reported_once(root: Path) -> None:
    assert broken_in_page("[a](../src/gone.py)", root) == [("broken-link", "../src/gone.py")]


def test_fenced_code_is_not_read(root: Path) -> None:
    assert broken_in_page("```python\n# gone.py\n[a](gone.md)\n```\n", root) == []
    assert broken_in_page("```\n```\ngone.py", root) == [("missing-file", "gone.py")]


def test_finding_has_the_line_and_says_what_to_do(root: Path) -> None:
    (finding,) = check_source('"""First.\n\nRead next: gone.py\n"""\n', "src/magnetar/a.py", root)
    assert finding.line == 3
    assert "name the file that replaced it" in finding.message


def test_command_prints_place_and_rule_and_fails(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "src/magnetar/ids.py").write_text('"""See gone.py."""\n')
    (root / "README.md").write_text("[a](gone.md)\n")
    monkeypatch.setattr(doc_refs, "check_tree", lambda: check_tree(root))
    assert doc_refs.main() == 1
    printed = capsys.readouterr().out
    assert "src/magnetar/ids.py:1: missing-file: gone.py does not exist" in printed
    assert "README.md:1: broken-link: gone.md does not exist" in printed


def test_real_tree_is_clean() -> None:
    assert check_tree() == []
