"""What the commands of `magnetar pipeline` share: their options, a Spark session, a bar on a terminal, clear errors.

Spark is imported inside functions, so that the core alone can run every other command.

Failure:   What Spark prints goes to a temporary file. After a failure it is kept, and the error names it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Final, Self, TypeAlias

import typer

from magnetar.cli.admin.client import AdminClient, AdminError, default_admin_url
from magnetar.cli.cluster_options import DEFAULT_URL, HostAdminUrl, ServiceUrl
from magnetar.errors import ArgumentError, SparkFailedError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

Url: TypeAlias = ServiceUrl
AdminUrl: TypeAlias = HostAdminUrl
Master: TypeAlias = Annotated[
    str,
    typer.Option(
        "--master", metavar="URL", help="URL of the Spark master, such as local[4], spark://host:7077 or yarn."
    ),
]
SparkSettings: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--spark", metavar="KEY=VALUE", help="Spark setting, such as spark.driver.memory=4g; may be repeated."
    ),
]
DEFAULT_MASTER = "local[*]"
_ANSWER_S: Final = 10.0
DEFAULT_SERVICE_URL = DEFAULT_URL


class Bar:
    """Is a `Reporter` (spark/pipelines/progress.py): draws on a terminal, and erases the bar when the work is done."""

    def __init__(self) -> None:
        self._shown: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._start()
        return self

    def _start(self) -> None:
        from rich.console import Console  # Only a terminal pays for importing rich.
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[count]}"),
            TimeElapsedColumn(),
        )
        self._shown = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._shown.add_task("", total=None, count="")
        self._shown.start()

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._shown is not None:
            self._shown.stop()

    def show(self, what: str, done: int, total: int | None) -> None:
        if self._shown is None or self._task is None:
            return
        count = f"{done:,}/{total:,}" if total else f"{done:,}" if done else ""
        self._shown.update(self._task, description=what, completed=done, total=total, count=count)

    def tell(self, what: str) -> None:
        self.show(what, 0, None)


def require_spark() -> None:
    """Before anything of spark/ is imported. MissingDependencyError says what to install."""
    from magnetar.spark.session import require_pyspark

    require_pyspark()


def require_cluster(url: str, admin_url: str | None) -> None:
    """AdminError with advice if no broker answers: Spark would take a minute to start, and try for another."""
    first, *others = (admin_url or default_admin_url(url)).split(",")
    scheme = first.partition("://")[0]
    addresses = [first, *(each if "://" in each else f"{scheme}://{each}" for each in others)]
    for at, address in enumerate(addresses, 1):
        try:
            AdminClient(address, timeout_s=_ANSWER_S).get("clusters")
        except AdminError as error:
            if at == len(addresses) and not error.status:  # A status is an answer.
                raise
        else:
            return


@contextlib.contextmanager
def spark_session(
    name: str, master: str, settings: Sequence[str] | None, cluster: tuple[str, str | None] | None
) -> Iterator[tuple[Any, Bar]]:
    """A session that knows format("magnetar"), and the bar. `require_spark` comes first. `cluster`: the addresses, as
    the user gave them, of the one that must be running."""
    from magnetar.spark.session import session

    chosen = _parsed(settings or ())
    if cluster is not None:
        require_cluster(*cluster)
    with Bar() as bar, _log_file() as log:
        bar.tell("starting Spark")
        with session(name, master, chosen, log) as spark:
            from magnetar.spark import register

            register(spark)
            yield spark, bar


def _parsed(settings: Sequence[str]) -> dict[str, str]:
    found = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key.startswith("spark."):
            raise ArgumentError(f"--spark {setting}: write spark.KEY=VALUE, such as spark.driver.memory=4g")
        found[key] = value
    return found


@contextlib.contextmanager
def _log_file() -> Iterator[Path]:
    """Kept only when Spark failed."""
    handle, name = tempfile.mkstemp(prefix="magnetar-spark-", suffix=".log")
    os.close(handle)
    try:
        yield Path(name)
    except SparkFailedError as error:
        if name in str(error):
            raise
        raise SparkFailedError(f"{error} (what Spark said: {name})") from error
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    Path(name).unlink(missing_ok=True)
