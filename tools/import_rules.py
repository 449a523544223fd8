"""Import rules: the folder table of ARCHITECTURE.md, held against the imports that are really there.

    python -m tools.import_rules     prints `file:line: rule: message`, exits 1 if there is any

Rows:      a folder may import rows above its own, and itself. The first row's members may import each other.
Counted:   every import: at the top, inside functions, behind TYPE_CHECKING, and `import_module("magnetar.…")`. Where
           it is matters only for islands: the command line goes there inside functions.
Rooms:     what is inside some folders has rows too: ROOMS. Writing a ledger knows nothing of reading one.
Protocols: the core knows none of the protocols that clients speak. Their codecs are for the front end of the same name
           in broker/, for topic/entry_format/, and for what is itself a client. Nothing in broker/ imports a front end.
To change the architecture, change ROWS and the table in ARCHITECTURE.md together.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "src" / "magnetar"
PACKAGE = "magnetar"

ROWS: list[tuple[str, ...]] = [
    ("errors", "ids", "names", "words", "config"),
    ("runtime",),
    ("wire",),
    ("client",),
    ("quorum",),
    ("storage",),
    ("metadata",),
    ("bookie",),
    ("ledger",),
    ("autorecovery",),
    ("topic",),
    ("schemas", "staging"),
    ("broker",),
    ("admin",),
    ("spark",),
    ("lab", "sim", "testing"),
    ("cli",),
]
FREE_AMONG_THEMSELVES = ROWS[0]
ROOMS: dict[str, list[tuple[str, ...]]] = {  # Folder → rows of its own folders and modules. Others are free.
    "client": [("http",), ("producing", "consuming")],
    "ledger": [("metadata",), ("channels",), ("reading", "writing"), ("recovery",)],
    "topic": [("entry_format",), ("log",), ("cursor", "compaction")],
    "spark": [("decoding", "encoding"), ("reading", "writing"), ("pipelines",)],
    "sim": [("device", "network"), ("disk",), ("ledgers",), ("topics",), ("bundles", "staging"), ("mutants",)],
}
ISLANDS = frozenset({"spark"})  # Nothing else imports them: who installs the core does not need what they need.
FERRIES = frozenset({"cli"})  # They may go to an island, but only inside functions: when a user asks for it.
FILES_OF = {"__init__": "errors", "__main__": "cli"}  # Files of the package itself count as this folder.
THIRD_PARTY = {  # Package → folders that may import it.
    "kazoo": ("metadata",),
    "pyspark": ("spark", "testing"),
}
SANS_IO = ("wire", "asyncio")  # Codecs decide and never do: this folder does not import that module.
CLIENT_PROTOCOLS = frozenset({"pulsar", "kafka"})  # Each has a codec in wire/ and a front end in broker/.
KNOW_PROTOCOLS = frozenset({"wire", "client", "admin", "spark", "lab", "sim", "testing", "cli"})
ENTRY_FORMAT = ("topic", "entry_format")  # The only part of the core that knows what the bytes of an entry mean.

_ROW_OF = {folder: number for number, row in enumerate(ROWS) for folder in row}


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    line: int
    rule: str
    message: str


@dataclass(frozen=True, slots=True)
class Import:
    line: int
    module: str
    """Absolute; for `from a import b` it is `a.b`, as b may be a module."""
    is_deferred: bool = False
    """Inside a function: done when that is called."""


def check_source(text: str, path: str) -> list[Finding]:
    """`path` is relative to src/magnetar."""
    importer = _module_of(path)
    folder = _folder(importer)
    if folder not in _ROW_OF:
        message = (
            f"folder {folder!r} is not in the table: give it a row in tools/import_rules.py and in ARCHITECTURE.md"
        )
        return [Finding(1, "unknown-folder", message)]
    findings: set[Finding] = set()
    for found in imports_of(ast.parse(text, path), importer, is_package=path.endswith("__init__.py")):
        findings.update(Finding(found.line, rule, message) for rule, message in _check(importer, folder, found))
    return sorted(findings)


# --- the rules --------------------------------------------------------------------------------------------------------


def _check(importer: list[str], folder: str, found: Import) -> Iterator[tuple[str, str]]:
    parts = found.module.split(".")
    if parts[0] != PACKAGE:
        yield from _check_third_party(folder, parts[0])
    elif len(parts) > 1:
        yield from _check_row(folder, parts[1], is_deferred=found.is_deferred)
        yield from _check_codecs(importer, parts)
        yield from _check_core(importer, folder, parts)
        yield from _check_rooms(importer, folder, parts)


def _check_third_party(folder: str, package: str) -> Iterator[tuple[str, str]]:
    allowed = THIRD_PARTY.get(package)
    if allowed is not None and folder not in allowed:
        places = " and ".join(f"{name}/" for name in allowed)
        yield "third-party", f"{package} may be imported only in {places}: use the interface they offer"
    if (folder, package) == SANS_IO:
        yield (
            "sans-io",
            f"{SANS_IO[0]}/ does not import {package}: codecs take bytes and return values, others do the I/O",
        )


def _check_row(folder: str, target: str, *, is_deferred: bool) -> Iterator[tuple[str, str]]:
    if target not in _ROW_OF:
        if not target.startswith("_"):  # `from magnetar import __version__` is no folder.
            yield "unknown-folder", f"{PACKAGE}.{target} is not in the table of tools/import_rules.py"
        return
    if target == folder or (folder in FREE_AMONG_THEMSELVES and target in FREE_AMONG_THEMSELVES):
        return
    if target in ISLANDS and folder in FERRIES:
        if not is_deferred:
            yield "island", f"{folder}/ imports {target}/ only inside the functions that need it"
    elif target in ISLANDS:
        yield "island", f"nothing imports {target}/: move what is shared to a folder above both"
    elif _ROW_OF[target] == _ROW_OF[folder]:
        yield "sideways", f"{folder}/ and {target}/ are in one row and stay apart: move what is shared to a row above"
    elif _ROW_OF[target] > _ROW_OF[folder]:
        yield "downward", f"{folder}/ is above {target}/ and must not know it: pass it in, or move the code"


def _check_rooms(importer: list[str], folder: str, target: list[str]) -> Iterator[tuple[str, str]]:
    if folder not in ROOMS or target[1] != folder or len(target) < 3:
        return
    row_of = {room: number for number, row in enumerate(ROOMS[folder]) for room in row}
    ours, theirs = importer[2] if len(importer) > 2 else "", target[2]
    if ours == theirs or ours not in row_of or theirs not in row_of:
        return
    if row_of[theirs] >= row_of[ours]:
        yield "rooms", f"{folder}/{ours}/ must not know {folder}/{theirs}/: see ROOMS, which has the rows of {folder}/"


def _check_codecs(importer: list[str], target: list[str]) -> Iterator[tuple[str, str]]:
    """A protocol's codec may use helpers that lie directly in wire/, and those know no protocol."""
    if importer[1:2] != ["wire"] or target[1] != "wire" or len(target) < 3:
        return
    ours, theirs = _protocol(importer), target[2]
    if theirs != ours and _is_protocol(theirs):
        yield (
            "codecs-apart",
            f"wire/{ours or ''} must not import wire/{theirs}: move what is shared to a module in wire/",
        )


def _check_core(importer: list[str], folder: str, target: list[str]) -> Iterator[tuple[str, str]]:
    """A second protocol is a folder in wire/ and one in broker/, and a form of entries: nothing else changes."""
    if len(target) < 3 or target[2] not in CLIENT_PROTOCOLS:
        return
    protocol = target[2]
    is_its_front_end = importer[1:3] == ["broker", protocol]
    if target[1] == "wire" and folder not in KNOW_PROTOCOLS:
        if not is_its_front_end and tuple(importer[1:3]) != ENTRY_FORMAT:
            yield (
                "core",
                f"only broker/{protocol}/ and {'/'.join(ENTRY_FORMAT)}/ know wire/{protocol}/: ask them",
            )
    elif target[1] == "broker" and folder == "broker" and not is_its_front_end:
        yield "core", f"the broker must not know its front end broker/{protocol}/: it is passed to Broker.open"


def _protocol(module: list[str]) -> str | None:
    return module[2] if len(module) > 2 and _is_protocol(module[2]) else None


def _is_protocol(name: str) -> bool:
    return name in PROTOCOLS or (SOURCES / "wire" / name).is_dir()


PROTOCOLS = frozenset({"bookkeeper", "pulsar", "kafka"})


# --- reading imports --------------------------------------------------------------------------------------------------


def imports_of(tree: ast.AST, importer: list[str], *, is_package: bool) -> Iterator[Import]:
    for node, is_deferred in _walk(tree):
        if isinstance(node, ast.Import):
            yield from (Import(node.lineno, alias.name, is_deferred) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, importer, is_package)
            yield from (Import(node.lineno, f"{base}.{alias.name}", is_deferred) for alias in node.names)
        elif isinstance(node, ast.Call) and _is_import_call(node):
            name = node.args[0]
            assert isinstance(name, ast.Constant)
            yield Import(node.lineno, str(name.value), is_deferred)


def _walk(tree: ast.AST) -> Iterator[tuple[ast.AST, bool]]:
    """Every node, and whether it is inside a function."""
    left = [(tree, False)]
    while left:
        node, is_deferred = left.pop()
        yield node, is_deferred
        inside = is_deferred or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        left += [(child, inside) for child in ast.iter_child_nodes(node)]


def _base(node: ast.ImportFrom, importer: list[str], is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    up = node.level - 1 if is_package else node.level
    package = importer[: len(importer) - up]
    return ".".join([*package, *([node.module] if node.module else [])])


def _is_import_call(node: ast.Call) -> bool:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name not in ("import_module", "__import__") or not node.args:
        return False
    return isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str)


def _module_of(path: str) -> list[str]:
    parts = path.removesuffix(".py").split("/")
    if parts[-1] == "__init__" and len(parts) > 1:
        parts.pop()
    return [PACKAGE, *parts]


def _folder(module: list[str]) -> str:
    return FILES_OF.get(module[1], module[1])


# --- the whole tree ---------------------------------------------------------------------------------------------------


def check_tree(sources: Path = SOURCES) -> list[str]:
    lines: list[str] = []
    for path in sorted(sources.rglob("*.py")):
        found = check_source(path.read_text(encoding="utf-8"), path.relative_to(sources).as_posix())
        shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
        lines.extend(f"{shown}:{finding.line}: {finding.rule}: {finding.message}" for finding in found)
    return lines


def main() -> int:
    lines = check_tree()
    for line in lines:
        print(line)
    if lines:
        print(f"import rules: {len(lines)} broken; the table is in ARCHITECTURE.md")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
