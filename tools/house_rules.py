"""House rules: production code takes disk, clocks, randomness and threads from `runtime/`, and runs alike every time.

    python -m tools.house_rules     prints `file:line: rule: message`, exits 1 if there is any

Why:       the simulator replays a failure from its seed. That works only if nothing bypasses the seam, and nothing
           depends on the order of a set or on an object's address.
How:       names are resolved through the imports of a file (`from time import time as now` is still `time.time`).
           Types are known only from annotations and plain assignments in the same function or class, so iteration over
           a set that comes from elsewhere is not seen: this is a net, not a proof.
Scope:     src/magnetar without EXEMPT; the rules of EVERYWHERE hold there too. No comment switches a rule off: an
           exception has a row and a reason in one of the tables below.
Read next: docs/runtime.md
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "src" / "magnetar"

# --- tables -----------------------------------------------------------------------------------------------------------

EXEMPT = {  # Folder below src/magnetar → why the rules do not hold there.
    "runtime": "it is the seam",
    "testing": "it starts real processes and waits for them",
    "lab": "it breaks real processes",
    "sim": "it is the other side of the seam",
    "cli": "it is the composition root: it reads the user's files and environment",
    "spark": "it runs inside Spark's own processes",
}
EVERYWHERE = frozenset({"blocking-in-async", "unsorted-listing", "pickle", "finalizer"})

EXCEPTIONS = [  # (files below src/magnetar, module they may import, why)
    (
        "metadata/sqlite*",
        "sqlite3",
        "the embedded store; its calls run on an offload lane, and it never runs simulated",
    ),
    ("metadata/zookeeper*", "kazoo", "the ZooKeeper client has its own threads, and never runs simulated"),
    (
        "storage/index/rocksdb_store.py",
        "rocksdict",
        "the location index; its calls run on offload lanes, and it never runs simulated: MemoryStore does",
    ),
    (
        "storage/index/rocksdb_store.py",
        "glob",
        "RocksDB's own directory, which no Disk sees; on an offload lane, like its calls",
    ),
    ("metadata/zookeeper/client.py", "select", "kazoo's own socket, polled on kazoo's own thread"),
]

_SEAM = "take a Disk from runtime/ as an argument"
_LANE = "take an Offload from runtime/ as an argument"
_ENTROPY = "take an Entropy from runtime/ as an argument"

IMPORTS = {  # Module → (rule, what to do). A submodule counts as its parent.
    "time": ("clock", "use loop.time() for durations, Entropy.wall_ms() for timestamps"),
    "secrets": ("randomness", _ENTROPY),
    "threading": ("thread", _LANE),
    "_thread": ("thread", _LANE),
    "queue": ("thread", _LANE),
    "concurrent": ("thread", _LANE),
    "multiprocessing": ("thread", _LANE),
    "subprocess": ("process", "starting programs belongs to cli/, lab/ and testing/"),
    "signal": ("process", "runtime/event_loop.py turns signals into one cancellation"),
    "shutil": ("file", _SEAM),
    "tempfile": ("file", _SEAM),
    "glob": ("file", _SEAM),
    "fcntl": ("file", _SEAM),
    "mmap": ("file", _SEAM),
    "fileinput": ("file", _SEAM),
    "linecache": ("file", _SEAM),
    "socket": ("socket", "use loop.create_server and loop.create_connection"),
    "select": ("socket", "use the event loop"),
    "selectors": ("socket", "use the event loop"),
    "socketserver": ("socket", "use loop.create_server"),
    "http.client": ("socket", "it blocks: use the event loop"),
    "urllib.request": ("socket", "it blocks: use the event loop"),
    "pickle": ("pickle", "write the format out with struct, protobuf or JSON"),
    "marshal": ("pickle", "write the format out with struct, protobuf or JSON"),
    "shelve": ("pickle", "write the format out with struct, protobuf or JSON"),
    "sqlite3": ("foreign-library", "only the embedded metadata store uses it"),
    "apsw": ("foreign-library", "it is for tests"),
    "rocksdict": ("foreign-library", "only the location index's store uses it"),
    "kazoo": ("foreign-library", "only the ZooKeeper metadata store uses it"),
}
OS_ALLOWED = frozenset(  # What of `os` neither touches the outside world nor differs between runs.
    {"PathLike", "environ", "fsdecode", "fsencode", "fspath", "getenv", "sep", "strerror"}
    | {
        f"path.{name}"
        for name in ("basename", "commonpath", "dirname", "isabs", "join", "normpath", "split", "splitext")
    }
)
NAMES = {  # Full name → (rule, what to do).
    "os.urandom": ("randomness", _ENTROPY),
    "os.getrandom": ("randomness", _ENTROPY),
    "datetime.datetime.now": ("clock", "use Entropy.wall_ms()"),
    "datetime.datetime.utcnow": ("clock", "use Entropy.wall_ms()"),
    "datetime.datetime.today": ("clock", "use Entropy.wall_ms()"),
    "datetime.date.today": ("clock", "use Entropy.wall_ms()"),
    "asyncio.to_thread": ("thread", _LANE),
    "asyncio.create_subprocess_exec": ("process", "starting programs belongs to cli/, lab/ and testing/"),
    "asyncio.create_subprocess_shell": ("process", "starting programs belongs to cli/, lab/ and testing/"),
    "io.open": ("file", _SEAM),
    "io.FileIO": ("file", _SEAM),
    "io.open_code": ("file", _SEAM),
}
_PATH_ONLY_METHODS = (
    *("read_text", "write_text", "read_bytes", "write_bytes", "iterdir", "rglob", "mkdir", "rmdir", "unlink", "touch"),
    *("is_file", "is_dir", "is_symlink", "symlink_to", "hardlink_to", "readlink", "lstat"),
)
METHODS = {  # Method names that mean one thing, whatever they are called on.
    "run_in_executor": ("thread", _LANE),
    "set_default_executor": ("thread", _LANE),
    **dict.fromkeys(_PATH_ONLY_METHODS, ("file", _SEAM)),
}
PATH_METHODS = frozenset(
    {"open", "stat", "exists", "rename", "replace", "glob", "chmod", "resolve", "samefile", "owner"}
)
TYPE_ONLY = {  # Of these modules only one name may be used, and it may be called only if parsing is all that does.
    "random": ("Random", False),
    "uuid": ("UUID", True),
}
TYPE_ONLY_UNCALLED = frozenset(
    f"{module}.{name}" for module, (name, may_be_called) in TYPE_ONLY.items() if not may_be_called
)
BLOCKING = frozenset(
    {"time.sleep", "input", "os.system", "os.wait", "os.waitpid", "urllib.request.urlopen", "socket.create_connection"}
    | {f"subprocess.{name}" for name in ("run", "call", "check_call", "check_output", "getoutput", "getstatusoutput")}
)
LISTINGS = frozenset({"os.listdir", "os.scandir", "os.walk", "glob.glob", "glob.iglob"})
LISTING_METHODS = frozenset({"iterdir", "glob", "rglob"})

SET_TYPES = frozenset({"set", "frozenset", "Set", "FrozenSet", "AbstractSet", "MutableSet"})
SET_METHODS = frozenset({"union", "intersection", "difference", "symmetric_difference", "copy"})
ORDER_BLIND = frozenset({"sorted", "set", "frozenset", "len", "min", "max", "sum", "any", "all", "bool"})
ORDER_KEEPING = frozenset(
    {"list", "tuple", "iter", "enumerate", "zip", "map", "filter", "dict", "next", "reversed", "deque"}
)


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    line: int
    rule: str
    message: str


# --- checking one file ------------------------------------------------------------------------------------------------


def check_source(text: str, path: str) -> list[Finding]:
    """`path` is relative to src/magnetar."""
    checker = _Checker(path)
    checker.visit(ast.parse(text, path))
    exempt = path.split("/", maxsplit=1)[0] in EXEMPT
    return sorted({finding for finding in checker.findings if not exempt or finding.rule in EVERYWHERE})


class _Scope:
    """What is known of the names of one function, class or module."""

    def __init__(self, *, is_async: bool = False) -> None:
        self.is_async = is_async
        self.types: dict[str, str] = {}  # "name" or "self.name" → "set" or "path"


class _Checker(ast.NodeVisitor):
    def __init__(self, path: str) -> None:
        self.findings: list[Finding] = []
        self._allowed = [module for pattern, module, _ in EXCEPTIONS if fnmatch(path, pattern)]
        self._imported: dict[str, str] = {}  # Name in this file → full name.
        self._imported_roots: set[str] = set()
        self._scopes = [_Scope()]
        self._order_blind: list[ast.AST] = []  # Expressions whose consumer does not care about the order.

    def _add(self, node: ast.AST, rule: str, message: str) -> None:
        self.findings.append(Finding(getattr(node, "lineno", 1), rule, message))

    # --- imports and names ---

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._check_module(node, alias.name)
            if alias.name in TYPE_ONLY:
                self._add_type_only(node, alias.name)
            bound = alias.asname or alias.name.split(".", maxsplit=1)[0]
            self._imported[bound] = alias.name if alias.asname else bound
            self._imported_roots.add(alias.name.split(".", maxsplit=1)[0])

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.level or node.module is None:
            return
        self._check_module(node, node.module)
        for alias in node.names:
            full = f"{node.module}.{alias.name}"
            self._imported[alias.asname or alias.name] = full
            self._imported_roots.add(node.module.split(".", maxsplit=1)[0])
            if node.module in TYPE_ONLY and alias.name != TYPE_ONLY[node.module][0]:
                self._add_type_only(node, node.module)
            self._check_module(node, full)
            self._check_name(node, full)

    def _check_module(self, node: ast.AST, module: str) -> None:
        for name, (rule, advice) in IMPORTS.items():
            is_that = module == name or module.startswith(f"{name}.")
            if is_that and name not in self._allowed:
                self._add(node, rule, f"{name}: {advice}")

    def _add_type_only(self, node: ast.AST, module: str) -> None:
        only = TYPE_ONLY[module][0]
        self._add(node, "randomness", f"{module}: only `from {module} import {only}` as a type is allowed; {_ENTROPY}")

    def _check_name(self, node: ast.AST, full: str) -> None:
        if full in NAMES:
            rule, advice = NAMES[full]
            self._add(node, rule, f"{full}: {advice}")
        elif full.startswith("os.") and full != "os.path" and _name_in_os(full) not in OS_ALLOWED:
            self._add(node, "file", f"{full} reaches the outside world: {_SEAM}")

    def _full_name(self, node: ast.expr) -> str | None:
        """`a.b.c` with the imports of this file resolved; None for anything that is not a plain dotted name."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        return ".".join([self._imported.get(node.id, node.id), *reversed(parts)])

    def visit_Attribute(self, node: ast.Attribute) -> None:
        full = self._full_name(node)
        if full is None:
            self.generic_visit(node)  # Something that is computed: look inside.
        elif full.split(".", maxsplit=1)[0] in self._imported_roots:
            self._check_name(node, full)

    # --- scopes ---

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._visit_function(node, is_async=False)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._visit_function(node, is_async=True)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._scopes.append(_Scope())  # It may run anywhere: not a part of the coroutine around it.
        self.generic_visit(node)
        self._scopes.pop()

    def _visit_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, *, is_async: bool) -> None:
        if node.name == "__del__":
            self._add(
                node, "finalizer", "__del__ runs when the interpreter likes: close things explicitly with aclose()"
            )
        scope = _Scope(is_async=is_async)
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            if argument.annotation is not None:
                _learn(scope, argument.arg, _annotated_type(argument.annotation))
        self._scopes.append(scope)
        for inner in _own_statements(node):
            self._learn_from(inner, scope)
        self.generic_visit(node)
        self._scopes.pop()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        scope = _Scope()
        for statement in node.body:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                _learn(scope, f"self.{statement.target.id}", _annotated_type(statement.annotation))
        for inner in ast.walk(node):
            self._learn_from(inner, scope, only_self=True)
        self._scopes.append(scope)
        self.generic_visit(node)
        self._scopes.pop()

    def visit_Module(self, node: ast.Module) -> None:
        for statement in node.body:
            self._learn_from(statement, self._scopes[0])
        self.generic_visit(node)

    def _learn_from(self, node: ast.AST, scope: _Scope, *, only_self: bool = False) -> None:
        if isinstance(node, ast.AnnAssign):
            name, found = _target_name(node.target), _annotated_type(node.annotation)
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            name, found = _target_name(node.targets[0]), self._value_type(node.value)
        else:
            return
        if name is not None and (name.startswith("self.") or not only_self):
            _learn(scope, name, found)

    def _value_type(self, node: ast.expr) -> str | None:
        if self._is_set(node):
            return "set"
        if isinstance(node, ast.Call) and self._full_name(node.func) == "pathlib.Path":
            return "path"
        return None

    def _known_type(self, node: ast.expr) -> str | None:
        name = _target_name(node)
        if name is None:
            return None
        return next((scope.types[name] for scope in reversed(self._scopes) if name in scope.types), None)

    # --- sets and order ---

    def _is_set(self, node: ast.expr) -> bool:
        if isinstance(node, (ast.Set, ast.SetComp)):
            return True
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitOr, ast.BitAnd, ast.Sub, ast.BitXor)):
            return self._is_set_like(node.left) or self._is_set_like(node.right)
        if isinstance(node, ast.IfExp):
            return self._is_set(node.body) or self._is_set(node.orelse)
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name):
                return node.func.id in ("set", "frozenset")
            return (
                isinstance(node.func, ast.Attribute) and node.func.attr in SET_METHODS and self._is_set(node.func.value)
            )
        return self._known_type(node) == "set"

    def _is_set_like(self, node: ast.expr) -> bool:
        """Also a view of a dict: it has an order of its own, but what set operators make of it has none."""
        is_view = (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("keys", "items")
        )
        return is_view or self._is_set(node)

    def _check_iteration(self, node: ast.AST, iterated: ast.expr) -> None:
        if self._is_set(iterated):
            self._add(
                node, "set-order", "a set has a different order in every run: iterate over sorted(...), or keep a dict"
            )

    def visit_For(self, node: ast.For) -> None:
        self._check_iteration(node, node.iter)
        self.generic_visit(node)

    def visit_Starred(self, node: ast.Starred) -> None:
        if node not in self._order_blind:
            self._check_iteration(node, node.value)
        self.generic_visit(node)

    def visit_Set(self, node: ast.Set) -> None:
        self._order_blind.extend(element for element in node.elts if isinstance(element, ast.Starred))
        self.generic_visit(node)

    def _visit_comprehension(self, node: ast.ListComp | ast.DictComp | ast.GeneratorExp) -> None:
        if node not in self._order_blind:
            for generator in node.generators:
                self._check_iteration(node, generator.iter)
        self.generic_visit(node)

    def visit_ListComp(self, node: ast.ListComp) -> None:
        self._visit_comprehension(node)

    def visit_DictComp(self, node: ast.DictComp) -> None:
        self._visit_comprehension(node)

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> None:
        self._visit_comprehension(node)

    # --- calls ---

    def visit_Call(self, node: ast.Call) -> None:
        full = self._full_name(node.func) or ""
        if full in ORDER_BLIND:
            self._order_blind.extend(node.args)
        self._check_call_name(node, full)
        self._check_method(node)
        self._check_order(node, full)
        self._check_listing(node, full)
        self.generic_visit(node)

    def _check_call_name(self, node: ast.Call, full: str) -> None:
        if full == "open":
            self._add(node, "file", f"open(): {_SEAM}")
        if full in BLOCKING and self._scopes[-1].is_async:
            self._add(
                node, "blocking-in-async", f"{full} stops the whole event loop: await something instead, or offload it"
            )
        if full in TYPE_ONLY_UNCALLED:
            self._add_type_only(node, full.split(".", maxsplit=1)[0])
        if full == "asyncio.as_completed" and node.args and _has_bare_coroutines(node.args[0]):
            self._add(node, "as-completed", "as_completed of coroutines orders them by address: make tasks first")

    def _check_method(self, node: ast.Call) -> None:
        if not isinstance(node.func, ast.Attribute):
            return
        name, receiver = node.func.attr, node.func.value
        if name in METHODS:
            rule, advice = METHODS[name]
            self._add(node, rule, f".{name}(): {advice}")
        if name in PATH_METHODS and (self._known_type(receiver) or self._value_type(receiver)) == "path":
            self._add(node, "file", f"Path.{name}(): {_SEAM}")
        if name == "pop" and not node.args and self._is_set(receiver):
            self._add(node, "set-order", "set.pop() takes another element in every run: take min() or keep a dict")
        if name == "join" and node.args:
            self._check_iteration(node, node.args[0])

    def _check_order(self, node: ast.Call, full: str) -> None:
        if full.rsplit(".", maxsplit=1)[-1] in ORDER_KEEPING:
            for argument in node.args:
                if node not in self._order_blind:
                    self._check_iteration(node, argument)
        for keyword in node.keywords:
            if keyword.arg == "key" and _uses_address(keyword.value):
                self._add(node, "address-order", "id() and hash() differ between runs: order by a value")

    def _check_listing(self, node: ast.Call, full: str) -> None:
        is_method = isinstance(node.func, ast.Attribute) and node.func.attr in LISTING_METHODS
        is_listing = full in LISTINGS or is_method
        if is_listing and not any(node is blind or _iterates(blind, node) for blind in self._order_blind):
            self._add(node, "unsorted-listing", "a directory lists in any order: wrap it in sorted(...)")


# --- small questions --------------------------------------------------------------------------------------------------


def _learn(scope: _Scope, name: str, found: str | None) -> None:
    if found is not None:
        scope.types[name] = found


def _own_statements(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function without those of functions and classes inside it."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            yield child
            yield from _own_statements(child)


def _target_name(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
        return f"self.{node.attr}"
    return None


def _annotated_type(node: ast.expr) -> str | None:
    if isinstance(node, ast.BinOp):  # `set[int] | None`
        return _annotated_type(node.left) or _annotated_type(node.right)
    if isinstance(node, ast.Subscript):
        outer = _last_name(node.value)
        return _annotated_type(node.slice) if outer in ("Final", "ClassVar", "Optional") else _type_named(outer)
    return _type_named(_last_name(node))


def _name_in_os(full: str) -> str:
    """`os.environ.get` is about `environ`, `os.path.join` about `path.join`."""
    parts = full.split(".")[1:]
    return ".".join(parts[:2]) if parts[0] == "path" else parts[0]


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _type_named(name: str) -> str | None:
    if name in SET_TYPES:
        return "set"
    return "path" if name == "Path" else None


def _uses_address(node: ast.expr) -> bool:
    if isinstance(node, ast.Name):
        return node.id in ("id", "hash")
    calls = (inner.func for inner in ast.walk(node) if isinstance(inner, ast.Call))
    return any(isinstance(function, ast.Name) and function.id in ("id", "hash") for function in calls)


def _has_bare_coroutines(node: ast.expr) -> bool:
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        elements = node.elts
    elif isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp)):
        elements = [node.elt]
    else:
        return False
    calls = [element for element in elements if isinstance(element, ast.Call)]
    return any(_last_name(call.func) not in ("create_task", "ensure_future") for call in calls)


def _iterates(consumer: ast.AST, listing: ast.Call) -> bool:
    """`sorted(p.name for p in folder.iterdir())`: the listing is what the consumed expression runs over."""
    generators = getattr(consumer, "generators", [])
    return any(generator.iter is listing for generator in generators)


# --- the whole tree ---------------------------------------------------------------------------------------------------


def check_tree(sources: Path = SOURCES) -> list[str]:
    lines: list[str] = []
    for path in sorted(sources.rglob("*.py")):
        if path.name.endswith("_pb2.py"):
            continue  # Generated; it has no calls of its own.
        relative = path.relative_to(sources).as_posix()
        shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
        found = check_source(path.read_text(encoding="utf-8"), relative)
        lines.extend(f"{shown}:{finding.line}: {finding.rule}: {finding.message}" for finding in found)
    return lines


def main() -> int:
    lines = check_tree()
    for line in lines:
        print(line)
    if lines:
        print(f"house rules: {len(lines)} broken; why they are there: docs/runtime.md")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
