"""Stops a process at one exact point of what Spark and the server do together, once, and leaves word; the test then
kills it.

    KILL_TEST_ORDERS=<file>                      in the environment of a Spark job, or of the server

The file says where: `<point>:<epoch>:<word>`; the test may change it at any time (`arm`). The first process that
reaches the point in that epoch creates the file <word>, with its own pid in it, and goes no further: what it was about
to do is never done, however long the killing takes. A word that is there already means that it has happened: all pass.

    KILL_TEST_WITHOUT_INTENT=1                 commits without the record that decides (without_intent.py)

How:      hooks/ is on the PYTHONPATH of these processes, and Python imports the sitecustomize in there first of all.
          The product has no switch for any of this.
Points:   ledger-created, mid-append, acked-not-returned (a task); tasks-done, before-intent, intent-reply-lost,
          between-topics, published, before-commit-file (the driver); mid-copy (the broker): half of what it appends
          at a time is durable, the other half is not yet appended.
          before-plan (a query that reads a topic, role `reader`): the epoch is the how manieth batch this process
          plans, from 0; Spark has committed those before it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.datasource import InputPartition

KILL = "KILL_TEST_ORDERS"
WITHOUT_INTENT = "KILL_TEST_WITHOUT_INTENT"
ROLE = "KILL_TEST_ROLE"
HOOKS = Path(__file__).resolve().parent / "hooks"
ROOT = HOOKS.parent.parent.parent
PYTHONPATH = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
"""Of every process of a job: workers import the functions of the query by their names."""


def environment(role: str, orders: Path | None, *, without_intent: bool = False) -> dict[str, str]:
    """Of a process that is to have the hook. The role is `job`, `reader` or `broker`; `orders` is the file that says
    where."""
    chosen = {"PYTHONPATH": f"{HOOKS}{os.pathsep}{PYTHONPATH}", ROLE: role}
    if orders:
        chosen[KILL] = str(orders)
    if without_intent:
        chosen[WITHOUT_INTENT] = "1"
    return chosen


def install() -> None:
    """In a process that was started with it. Imports nothing of the product where nothing is asked for."""
    role, kill, is_without_intent = os.environ.get(ROLE), os.environ.get(KILL), os.environ.get(WITHOUT_INTENT)
    if kill and role == "job":
        from magnetar.spark import failpoints

        failpoints.set_hook(KillPoint(Path(kill)))
    if kill and role == "reader":
        _stop_plans(KillPoint(Path(kill)))
    if kill and role == "broker":
        _stop_copies(KillPoint(Path(kill)))
    if is_without_intent:
        from interop.spark import without_intent

        {"job": without_intent.install_in_job, "broker": without_intent.install_in_broker}[role or ""]()


def arm(orders: Path, point: str, epoch: int, word: Path) -> None:
    """In one step: nobody reads half of it."""
    written = orders.with_suffix(".new")
    written.write_text(f"{point}:{epoch}:{word}")
    written.replace(orders)


class KillPoint:
    def __init__(self, orders: Path) -> None:
        self._orders = orders

    def __call__(self, point: str, epoch: int) -> None:
        if not self._orders.exists():
            return
        wanted, at, word = self._orders.read_text().split(":", 2)
        if (point, epoch) == (wanted, int(at)) and _is_first(Path(word)):
            while True:
                time.sleep(3_600)


def _is_first(word: Path) -> bool:
    try:
        descriptor = os.open(word, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return False
    os.write(descriptor, str(os.getpid()).encode())
    os.close(descriptor)
    return True


def _stop_plans(point: KillPoint) -> None:
    from magnetar.spark.reading.readers import StreamReader

    plan = StreamReader.partitions
    planned: list[dict[str, Any]] = []

    def plan_with_hook(self: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if end not in planned:  # Spark may ask for one batch twice.
            planned.append(end)
        point("before-plan", len(planned) - 1)
        return plan(self, start, end)

    StreamReader.partitions = plan_with_hook  # type: ignore[method-assign]


def _stop_copies(point: KillPoint) -> None:
    from magnetar.broker.staged.copy import StagedCopy
    from magnetar.broker.staged.publishing import StagedPublishing

    make, append = StagedPublishing.__init__, StagedCopy._append

    def make_with_hook(self: StagedPublishing, *arguments: Any) -> None:
        make(self, *arguments, reached=point)

    async def append_in_halves(self: StagedCopy, chunk: Sequence[Any]) -> None:
        half = len(chunk) // 2
        await append(self, chunk[:half])
        await self._settle()
        self._on_chunk()
        await append(self, chunk[half:])

    StagedPublishing.__init__ = make_with_hook  # type: ignore[method-assign,assignment]
    StagedCopy._append = append_in_halves  # type: ignore[method-assign]
