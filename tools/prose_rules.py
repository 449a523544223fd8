"""Prose rules: what users read says what it means, in words that a stranger takes the right way.

    python -m tools.prose_rules     prints `file:line: rule: message`, exits 1 if there is any

Why:       "behind" was used for "after", "so many" for a number, "is there" for "exists". Native readers take the first
           for its opposite, and need the code to understand the others.
How:       a row of RULES is a pattern of the wrong sense. Where a word has a right sense too, the pattern leaves the
           neighbours out in which it is right. This is a net, not a proof: read what you write.
Scope:     HELD says which texts of which paths are held. Add a row when a folder is clean; never remove one. No comment
           switches a rule off: code, in fences or in backticks, is not prose and not looked at.
Read next: HACKING.md
"""

from __future__ import annotations

import ast
import enum
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parent.parent


class Kind(enum.Enum):
    """Which texts of a file are held."""

    PAGE = "a Markdown page without its code"
    KNOBS = "the texts of `knob(…)`, and the docstrings of classes, which docs/configuration.md shows"
    HELP = "`help=`, the tables of commands, and the docstrings of commands"
    MESSAGES = "what is raised or logged, and notes for people"
    DOCSTRINGS = "docstrings, comments, and the labels of module docstrings"


# --- tables -----------------------------------------------------------------------------------------------------------

HELD = [  # (files below the project's root, which of their texts)
    ("*.md", Kind.PAGE),
    ("docs/*.md", Kind.PAGE),
    ("src/magnetar/config/*.py", Kind.KNOBS),
    ("src/magnetar/cli/**/*.py", Kind.HELP),
    *(
        (f"src/magnetar/{held}", kind)
        for held in (
            "admin/**/*.py",
            "bookie/**/*.py",
            "broker/**/*.py",
            "cli/**/*.py",
            "client/**/*.py",
            "config/**/*.py",
            "errors.py",
            "ids.py",
            "ledger/**/*.py",
            "metadata/**/*.py",
            "names.py",
            "quorum/**/*.py",
            "runtime/**/*.py",
            "schemas/**/*.py",
            "sim/*.py",
            "sim/ledgers/**/*.py",
            "sim/mutants/**/*.py",
            "sim/staging/**/*.py",
            "spark/**/*.py",
            "staging/**/*.py",
            "storage/**/*.py",
            "testing/**/*.py",
            "topic/**/*.py",
            "wire/**/*.py",
            "words.py",
        )
        for kind in (Kind.DOCSTRINGS, Kind.MESSAGES)
    ),
    ("tests/**/*.py", Kind.DOCSTRINGS),
]

LABELS: Final = frozenset({"Purpose", "Invariant", "Order", "Format", "Failure", "Limits", "Threads", "Read next"})
_LABEL = re.compile(r"^([A-Z][A-Za-z ]+):(?:\s|$)", re.MULTILINE)

_START = r"(?:\A|(?<=[.!?:;*|-] )|(?<=\n\n))"  # Where a sentence begins.
_SLOWER = "".join(f"(?<!{word} )" for word in ("lag", "lags", "lagging", "fall", "falls", "fallen", "left"))

RULES = [  # (rule, pattern of the wrong sense, what to write)
    (
        "behind",
        rf"{_SLOWER}\b[Bb]ehind\b(?! (?:a|the) (?:proxy|firewall|load balancer|gateway)\b)",
        "'after', if it comes later; 'lags behind', if it is slower",
    ),
    ("forever", r"\b[Ff]or ever\b", "'forever', or name the end"),
    ("in-progress", r"\b(?:under way|on (?:its|their) way)\b", "'in progress'"),
    ("whoever", r"\b[Ww]ho(?:m|so)?ever\b", "the subject: the caller, the client, the owner"),
    ("who", rf"{_START}Who(?:m|se)? (?![^.?]*\?)", "the subject: the caller, the client, the owner"),
    ("he", r"\b(?:[Hh]e|him)\b", "'it', or the subject: the consumer, the client"),
    ("fragment", rf"{_START}Of (?:the|a|an|one|which|what|whom)\b", "a sentence with its subject"),
    ("continues", r"\b(?:go|goes|going|gone|went) on\b(?! to\b)", "'continues'"),
    ("exists", r"\b(?:is|are|was|were)(?: not| no longer)? there\b", "'exists'"),
    ("number", r"\b[Ss]o (?:many|much|few|long|often|old|large)\b(?! as\b)", "the number and its unit"),
    ("otherwise", r"[,;(] ?else\b(?! if\b)", "'otherwise'"),
    ("anyway", r"\ball the same\b", "'anyway', or leave it out"),
    ("nobody", r"\b(?:[Nn]o|[Ss]ome|[Ee]very|[Aa]ny)body\b", "the subject: no client, another owner, all readers"),
    ("told", r"\b(?:told|tells)\b", "'reports', 'sends' or 'returns': what the code does"),
    ("gone", r"\b(?:is|are|was|were) gone\b", "'deleted', 'lost', or 'does not exist any more'"),
    ("none", r"\bthat (?:is|are) none\b", "what it is instead: 'not a port', 'invalid'"),
]
_PATTERNS = [(rule, re.compile(pattern.replace(" ", r"\s")), advice) for rule, pattern, advice in RULES]

_FENCES = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`|<!--.*?-->|\]\([^)]*\)", re.DOTALL)
_LOG_METHODS = frozenset({"debug", "info", "warning", "error", "exception", "critical"})
_TOLD = frozenset({"note", "print_note"})
_STANDS_FOR_A_VALUE = "X"


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    line: int
    rule: str
    message: str


# --- one file ---------------------------------------------------------------------------------------------------------


def check_text(text: str, first_line: int = 1) -> list[Finding]:
    """Checks one piece of prose."""
    prose = _without_code(text)
    return sorted(
        Finding(first_line + prose.count("\n", 0, match.start()), rule, f"{_shown(match)!r}: write {advice}")
        for rule, pattern, advice in _PATTERNS
        for match in pattern.finditer(prose)
    )


def check_source(text: str, kind: Kind) -> list[Finding]:
    """Checks the texts of this kind in a Python module, or a page."""
    if kind is Kind.PAGE:
        return check_text(text)
    if kind is Kind.DOCSTRINGS:
        return _check_docstrings(text)
    pieces = {Kind.KNOBS: _knobs, Kind.HELP: _help, Kind.MESSAGES: _messages}[kind](ast.parse(text))
    return sorted({finding for line, piece in pieces for finding in check_text(piece, line)})


def _check_docstrings(source: str) -> list[Finding]:
    tree = ast.parse(source)
    pieces = [*_docstrings(tree), *_comments(source)]
    found = {finding for line, piece in pieces for finding in check_text(piece, line)}
    return sorted(found.union(_other_labels(tree)))


def _without_code(text: str) -> str:
    """Returns the text with as many lines, one blank between words, and a word in place of what is code."""
    for pattern in (_FENCES, _CODE):
        text = pattern.sub(lambda match: _STANDS_FOR_A_VALUE + "\n" * match[0].count("\n"), text)
    return re.sub(r"[ \t]*\n[ \t]*|[ \t]+", lambda match: "\n" if "\n" in match[0] else " ", text)


def _shown(match: re.Match[str]) -> str:
    return " ".join(match[0].split()).lstrip(",;( ")


# --- texts of a module ------------------------------------------------------------------------------------------------


def _knobs(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _name(node.func) == "knob" and len(node.args) > 1:
            yield from _strings(node.args[1])
        elif isinstance(node, ast.ClassDef):
            yield from _docstring(node)


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields every string that stands alone: docstrings, also those of attributes."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text), lineno=line)):
                yield line, text


def _comments(source: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")


def _other_labels(tree: ast.Module) -> Iterator[Finding]:
    """Yields labels of the module's docstring that are not in LABELS. The first line is a sentence, not a label."""
    for first_line, text in _docstring(tree):
        for match in _LABEL.finditer(text):
            if not match.start() or match[1] in LABELS:
                continue
            line = first_line + text.count("\n", 0, match.start())
            yield Finding(line, "label", f"{match[1]!r}: write one of {', '.join(sorted(LABELS))}")


def _help(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "help":
            yield from _strings(node.value)
    for statement in tree.body:
        match statement:
            case ast.FunctionDef(name=name) if not name.startswith("_"):
                yield from _docstring(statement)
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name.isupper():
                yield from _strings_within(value)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value) if name.strip("_").isupper():
                yield from _strings_within(value)


def _messages(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Raise(exc=ast.Call(args=arguments)):
                for argument in arguments:
                    yield from _strings(argument)
            case ast.Call(func=function, args=[first, *_]) if _is_told(function):
                yield from _strings(first)


def _is_told(function: ast.expr) -> bool:
    is_log = isinstance(function, ast.Attribute) and function.attr in _LOG_METHODS and _name(function.value) == "log"
    return is_log or _name(function) in _TOLD


def _strings(node: ast.expr) -> Iterator[tuple[int, str]]:
    """Yields the text of a literal, with a word for each value that is filled in; both texts of a conditional."""
    match node:
        case ast.Constant(value=str(text)):
            yield node.lineno, text
        case ast.JoinedStr(values=parts):
            texts = (str(part.value) if isinstance(part, ast.Constant) else _STANDS_FOR_A_VALUE for part in parts)
            yield node.lineno, "".join(texts)
        case ast.IfExp(body=body, orelse=orelse):
            yield from _strings(body)
            yield from _strings(orelse)


def _strings_within(value: ast.expr) -> Iterator[tuple[int, str]]:
    for node in ast.walk(value):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def _docstring(node: ast.Module | ast.FunctionDef | ast.ClassDef) -> Iterator[tuple[int, str]]:
    match node.body[:1]:
        case [ast.Expr(value=ast.Constant(value=str(text), lineno=line))]:
            yield line, text


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


# --- the whole tree ---------------------------------------------------------------------------------------------------


def check_tree(root: Path = ROOT) -> list[str]:
    """Checks every file that HELD names."""
    lines: list[str] = []
    for pattern, kind in HELD:
        for path in sorted(root.glob(pattern)):
            if path.name.endswith("_pb2.py"):
                continue  # Generated.
            found = check_source(path.read_text(encoding="utf-8"), kind)
            shown = path.relative_to(root).as_posix()
            lines.extend(f"{shown}:{finding.line}: {finding.rule}: {finding.message}" for finding in found)
    return lines


def main() -> int:
    lines = check_tree()
    for line in lines:
        print(line)
    if lines:
        print(f"prose rules: {len(lines)} broken; HACKING.md says how to write")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
