"""Doc references: every module that a docstring or a page names exists, and so does every file that a page links to.

    python -m tools.doc_refs        prints `file:line: rule: message`, exits 1 if there is any

Purpose:   docstrings say what to read next. A file that was renamed or removed leaves signs that lead nowhere, and no
           other tool notices.
Rule:      `missing-file`: a name such as `ids.py` or `ledger/recovery/fence.py` is looked up in the folder of the
           file that
           says it, in `src/magnetar/`, in `src/` and in the project's root. In a page, a name without a folder is also
           looked up in the folders that the page names, such as `ledger/`.
           `broken-link`: the target of a relative link of a page, without its anchor.
Scope:     docstrings of the folders in SOURCES, and strings that stand alone, as after an attribute; the pages in
           PAGES. Fenced code in pages is not read: it shows files of the reader's.
Limits:    a name with a placeholder (`test_*.py`, `<family>.py`) is not a reference. Comments are not read.
Read next: house_rules.py, import_rules.py
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("src", "tests", "tools", "workloads")
PAGES = ("README.md", "ARCHITECTURE.md", "HACKING.md", "docs/*.md")
PACKAGE = "src/magnetar"

FOREIGN = {  # Names of files that are not ours → whose they are.
    "setup.py": "a convention of Python's packaging",
}

_NAME = re.compile(r"(?<![\w./*>}…:-])((?:[\w-]+/)*\w+\.py)(?!\w|[/*<{])")
_FOLDER = re.compile(r"(?<![\w./*>}-])((?:[\w-]+/)+)(?=[\w`]|\s|$)")
_LINK = re.compile(r"\]\(([^()\s]+)\)")
_FENCE = re.compile(r"^\s*(```|~~~)")
_ELSEWHERE = re.compile(r"^([a-z][a-z0-9+.-]*:|#|//)")  # A URL, or a place on the same page.


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    line: int
    rule: str
    message: str


# --- checking one file ------------------------------------------------------------------------------------------------


def check_source(text: str, path: str, root: Path = ROOT) -> list[Finding]:
    """Checks the docstrings of a module; `path` is relative to `root`."""
    found = []
    for first, docstring in _docstrings(ast.parse(text, path)):
        for number, line in enumerate(docstring.split("\n"), start=first):
            found += [_missing(number, name) for name in _names(line) if not _exists(name, _bases(path), root)]
    return sorted(set(found))


def check_page(text: str, path: str, root: Path = ROOT) -> list[Finding]:
    """Checks the names and links of a page; `path` is relative to `root`."""
    lines = list(_prose(text))
    named = {folder for _, line in lines for folder in _FOLDER.findall(line)}
    bases = _bases(path)
    more = [*bases, *(f"{base}/{folder}" for base in bases for folder in sorted(named))]
    found = []
    for number, line in lines:
        names = _names(_LINK.sub("]", line))
        found += [_missing(number, name) for name in names if not _exists(name, bases if "/" in name else more, root)]
        targets = [target.partition("#")[0] for target in _LINK.findall(line) if not _ELSEWHERE.match(target)]
        found += [_broken(number, target) for target in targets if not (root / bases[0] / target).exists()]
    return sorted(set(found))


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every string that stands alone, with its first line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def _prose(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a page outside fenced code, with their numbers."""
    is_fenced = False
    for number, line in enumerate(text.split("\n"), start=1):
        if _FENCE.match(line):
            is_fenced = not is_fenced
        elif not is_fenced:
            yield number, line


def _names(line: str) -> list[str]:
    return [name for name in _NAME.findall(line) if name not in FOREIGN]


def _bases(path: str) -> list[str]:
    return [PurePosixPath(path).parent.as_posix(), PACKAGE, "src", "."]


def _exists(name: str, bases: list[str], root: Path) -> bool:
    return any((root / base / name).is_file() for base in bases)


def _missing(line: int, name: str) -> Finding:
    return Finding(line, "missing-file", f"{name} does not exist: name the file that replaced it, with its folder")


def _broken(line: int, target: str) -> Finding:
    return Finding(line, "broken-link", f"{target} does not exist: link to the file that replaced it")


# --- the whole tree ---------------------------------------------------------------------------------------------------


def check_tree(root: Path = ROOT) -> list[str]:
    lines: list[str] = []
    for folder in SOURCES:
        for path in sorted((root / folder).rglob("*.py")):
            shown = path.relative_to(root).as_posix()
            lines += _shown(shown, check_source(path.read_text(encoding="utf-8"), shown, root))
    for pattern in PAGES:
        for path in sorted(root.glob(pattern)):
            shown = path.relative_to(root).as_posix()
            lines += _shown(shown, check_page(path.read_text(encoding="utf-8"), shown, root))
    return lines


def _shown(path: str, findings: list[Finding]) -> list[str]:
    return [f"{path}:{finding.line}: {finding.rule}: {finding.message}" for finding in findings]


def main() -> int:
    lines = check_tree()
    for line in lines:
        print(line)
    if lines:
        print(f"doc references: {len(lines)} lead nowhere")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
