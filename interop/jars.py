"""Apache's jars by Maven, and Java programs compiled against them. Both are kept in build/interop.

A folder of jars is named after the hash of its pom, a folder of classes after that of the pom and the sources: a change
of either makes a new one, and an interrupted download leaves nothing that looks finished. BookKeeper and Pulsar do not
share a folder: Pulsar brings another release of BookKeeper, and its admin tool other releases of Pulsar's classes.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from magnetar.errors import MissingDependencyError, ProcessFailedError
from magnetar.runtime.java import find_java, parse_version

HERE = Path(__file__).resolve().parent
CACHE = HERE.parent / "build" / "interop"
JAVA_MIN = 17  # What Apache's classes are compiled for.
_MAVEN_TIMEOUT_S = 900
_COMPILER_TIMEOUT_S = 120
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class Jars:
    """What one pom brings, and the folder of Java programs that are compiled against it, if there are any."""

    what: str
    pom: Path
    megabytes: int
    sources: Path | None = None
    shared: tuple[Path, ...] = ()
    """Sources of another folder that these programs need, too."""


_OURS, _PULSAR, _SPARK = HERE / "java", HERE / "pulsar", HERE / "spark"
BOOKKEEPER = Jars("BookKeeper", HERE / "pom.xml", 110, _OURS)
_JSON_LINES = (_OURS / "JsonLines.java",)
PULSAR = Jars("Pulsar", _PULSAR / "server-pom.xml", 245, _PULSAR / "java", _JSON_LINES)
PULSAR_ADMIN = Jars("Pulsar's admin tool", _PULSAR / "admin-pom.xml", 85, _PULSAR / "admin_java", _JSON_LINES)
KAFKA = Jars("Kafka", _SPARK / "kafka-pom.xml", 56, HERE / "kafka" / "java", _JSON_LINES)
KAFKA_CONNECTOR = Jars("Spark's connector for Kafka", _SPARK / "connector-pom.xml", 11)


def jar_folder(jars: Jars = BOOKKEEPER) -> Path:
    """Downloads what the pom names, unless that was done before."""
    return _make_once(CACHE / f"lib-{_hash(jars.pom)}", lambda target: _download(jars, target))


def class_folder(jars: Jars = BOOKKEEPER) -> Path:
    """Compiles the Java programs, unless that was done before."""
    assert jars.sources is not None, f"there is no Java program on the classes of {jars.what}"
    sources = [*sorted(jars.sources.glob("*.java")), *jars.shared]
    name = f"classes-{_hash(jars.pom, *sources)}"
    return _make_once(CACHE / name, lambda target: _compile(jars, sources, target))


def _make_once(target: Path, make: Callable[[Path], None]) -> Path:
    if target.exists():
        return target
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="making-") as temporary:
        made = Path(temporary) / "made"
        made.mkdir()
        make(made)
        if not target.exists():
            made.rename(target)
    return target


def _hash(*files: Path) -> str:
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()[:12]


def _download(jars: Jars, target: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise MissingDependencyError(
            "Maven (mvn) is not on the PATH; it gets Apache's classes. Install it, for example: apt install maven"
        )
    print(f"  getting Apache's classes from Maven Central: {jars.what} (once, about {jars.megabytes} MB)", flush=True)
    _run(
        f"Maven could not get Apache's classes of {jars.what}",
        [
            maven,
            "--quiet",
            "--batch-mode",
            f"--file={jars.pom}",
            "dependency:copy-dependencies",
            "-DincludeScope=runtime",
            f"-DoutputDirectory={target}",
        ],
        _MAVEN_TIMEOUT_S,
    )


def _compile(jars: Jars, sources: list[Path], target: Path) -> None:
    command = [find_compiler(), "-nowarn", "-proc:none", "-cp", f"{jar_folder(jars)}/*", "-d", target, *sources]
    _run("the Java side does not compile", [str(word) for word in command], _COMPILER_TIMEOUT_S)


def find_compiler() -> Path:
    """javac beside the runtime we use, or on the PATH; a runtime alone is not enough here."""
    beside = find_java(JAVA_MIN).home / "bin" / "javac"
    on_path = shutil.which("javac")
    for candidate in [beside, *([Path(on_path)] if on_path else [])]:
        if candidate.exists() and (_compiler_version(candidate) or 0) >= JAVA_MIN:
            return candidate
    raise MissingDependencyError(
        f"javac {JAVA_MIN} or newer was found neither in {beside.parent} nor on the PATH. Install a JDK, for example:"
        " apt install openjdk-17-jdk-headless, and set JAVA_HOME to it"
    )


def _compiler_version(compiler: Path) -> int | None:
    answer = subprocess.run([compiler, "-version"], capture_output=True, text=True, timeout=60, check=False)
    number = (answer.stdout + answer.stderr).removeprefix("javac").strip()  # Such as "javac 17.0.15".
    return parse_version(f'version "{number}"')


def _run(what: str, command: list[str], timeout: int) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        raise ProcessFailedError(f"{what}: not finished after {timeout} s") from None
    if done.returncode:
        lines = [_COLOUR.sub("", line) for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise ProcessFailedError("\n".join([f"{what}:", *lines[:15]]))
