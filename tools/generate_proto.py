"""Generates Python and its type stubs from every .proto file below src/. Run as `make proto`; both sides are committed.

The lines that name the generator's release, and the check that refuses an older protobuf at run time, are left out: the
rest is the file's descriptor and calls that every protobuf since 5.26 has, so the files depend on nothing but their
.proto file and run on every protobuf that pyproject.toml allows. `stale()` tells which committed files do not match.
"""

from __future__ import annotations

import re
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
_VERSION_LINES = re.compile(
    r"^# Protobuf Python Version: [^\n]*\n|^from google.protobuf import runtime_version [^\n]*\n"
    r"|^_runtime_version\.Validate.*?^\)\n",
    re.MULTILINE | re.DOTALL,
)


class GenerationError(Exception):
    """protoc refused a file; it has said why on standard error."""


def proto_files(source: Path = SOURCE) -> list[Path]:
    return sorted(path.relative_to(source) for path in source.rglob("*.proto"))


def generate(target: Path, source: Path = SOURCE) -> list[Path]:
    """Writes the generated files below `target`; returns their paths relative to it."""
    protos = proto_files(source)
    well_known = str(files("grpc_tools") / "_proto")
    arguments = [
        "protoc",
        f"--proto_path={source}",
        f"--proto_path={well_known}",
        f"--python_out={target}",
        f"--pyi_out={target}",
        *map(str, protos),
    ]
    if protoc.main(arguments) != 0:
        raise GenerationError("protoc failed; see its message above")
    written = [proto.with_name(proto.stem + suffix) for proto in protos for suffix in ("_pb2.py", "_pb2.pyi")]
    for path in written:
        (target / path).write_text(_VERSION_LINES.sub("", (target / path).read_text()))
    return written


def stale(source: Path = SOURCE) -> list[Path]:
    """Committed files that are missing or differ from what their .proto file says now."""
    with tempfile.TemporaryDirectory() as temporary:
        fresh = Path(temporary)
        generated = generate(fresh, source)
        return [path for path in generated if not _same(source / path, fresh / path)]


def _same(committed: Path, fresh: Path) -> bool:
    return committed.exists() and committed.read_text() == fresh.read_text()


def main() -> int:
    try:
        written = generate(SOURCE)
    except GenerationError as error:
        print(error, file=sys.stderr)
        return 1
    for path in written:
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
