"""Jobs that copy a topic, each stopped at one point of the exactly-once protocol; then killed, and others go on.

Stopped:   a process that has reached its point does nothing any more (kill_hook.py), so several jobs of one driver can
           be brought to several points, one after the other, and one kill -9 ends them all there. A Spark session takes
           ten seconds to start; a job takes two.
Rest:      another driver does, on the same checkpoints.
Verdict:   the second topic holds every message of the first once, in the order of its key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from interop.spark.driver import Driver, JobFailedError, executor_of, kill
from interop.spark.kill_hook import arm, environment
from interop.spark.messages import Verdict, compare, create_topic, fill, read
from interop.spark.without_intent import POINT_OF_THE_DECISION
from magnetar.testing.processes.servers import StandaloneProcess

LOCAL: Final = "local[2]"
CLUSTER: Final = "local-cluster[2,1,1024]"
MESSAGES: Final = 4_500
PER_TRIGGER: Final = 1_500
SIZE: Final = 1_000
KEYS: Final = 40
EPOCH: Final = 1  # There is one before, and there is one behind.
POINT_TIMEOUT_S: Final = 240.0
JOB_TIMEOUT_S: Final = 300.0
TRIES_MAX: Final = 3  # On a busy machine Spark's own Python workers may be late: it gives them ten seconds.

IN_TASKS: Final = ("ledger-created", "mid-append", "acked-not-returned")
ON_THE_DRIVER: Final = (
    "tasks-done", "before-intent", "intent-reply-lost", "between-topics", "published", "before-commit-file"
)  # fmt: skip
IN_THE_BROKER: Final = "mid-copy"
_KEEPS_ALL: Final = ("defaults.retention_minutes=-1", "defaults.retention_mb=-1")

Job = dict[str, Any]


class KillTest:
    """Owns a server, whose copies can be stopped, too, and the driver that finishes what others began."""

    def __init__(self, directory: Path, *, without_intent: bool = False) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._orders = directory / "orders"
        self._without_intent = without_intent
        self._number = 0
        self._survivor: Driver | None = None
        hooks = environment("broker", self._orders, without_intent=without_intent)
        words = [f"{name}={value}" for name, value in hooks.items()]
        self.server = StandaloneProcess(directory / "server", *_KEEPS_ALL, under=("/usr/bin/env", *words))
        self.server.start()

    # --- until the kill -----------------------------------------------------------------------------------------------

    def open_driver(self, master: str) -> Driver:
        self._number += 1
        hooks = environment("job", self._orders, without_intent=self._without_intent)
        return Driver(self._directory / f"driver-{self._number}", master, hooks)

    def stop_at(self, driver: Driver, point: str) -> tuple[Job, int]:
        """A job of its own is brought there. Returns it, and the pid of the process that stands still."""
        self._number += 1
        here = self._directory / f"{self._number}-{point}"
        job, reached = self._prepare(here), here / "reached"
        arm(self._orders, point, EPOCH, reached)
        for tries_left in reversed(range(TRIES_MAX)):
            driver.begin(job)
            driver.child.wait_until(
                lambda: _pid_in(reached) > 0 or driver.has_answered, what=point, timeout=POINT_TIMEOUT_S
            )
            if pid := _pid_in(reached):
                return job, pid
            driver.expect_failure(is_fatal=not tries_left)
        raise AssertionError("the last try returns or raises")

    def killed_at(self, master: str, points: Sequence[str]) -> Mapping[str, Job]:
        """All of the driver's processes, while a job stands at each of these points. The broker's can only be last, and
        then the broker is killed with it. A task that stands holds one of the driver's cores."""
        with self.open_driver(master) as driver:
            jobs = {point: self.stop_at(driver, point)[0] for point in points}
        if points[-1] == IN_THE_BROKER:
            self.server.kill()
            self.server.start()
        return jobs

    # --- after it -----------------------------------------------------------------------------------------------------

    def finish(self, job: Job) -> Verdict:
        """By another driver, kept for all of them. A job that fails is begun again, as whoever runs it would."""
        if self._survivor is None:
            self._survivor = self.open_driver(LOCAL)
        for tries_left in reversed(range(TRIES_MAX)):
            try:
                self._survivor.run(job, JOB_TIMEOUT_S)
                break
            except JobFailedError:
                if not tries_left:
                    raise
        return self.verdict(job)

    def verdict(self, job: Job) -> Verdict:
        source, target = (read(self.server.url, job[which], self._log) for which in ("source", "target"))
        return compare(source, target)

    def close(self) -> None:
        if self._survivor is not None:
            self._survivor.kill()
        self.server.kill()

    # --- parts --------------------------------------------------------------------------------------------------------

    @property
    def _log(self) -> Path:
        return self._directory / "client.log"

    def _prepare(self, here: Path) -> Job:
        here.mkdir()
        name = f"persistent://public/default/killed-{self._number}"
        for topic in (f"{name}-source", f"{name}-target"):
            create_topic(self.server.admin_url, topic)
        fill(self.server.url, f"{name}-source", self._log, count=MESSAGES, size=SIZE, keys=KEYS)
        return {
            "source": f"{name}-source", "target": f"{name}-target", "checkpoint": str(here / "checkpoint"),
            "service_url": self.server.url, "admin_url": self.server.admin_url, "per_trigger": PER_TRIGGER,
            "until": "end",
        }  # fmt: skip


def _pid_in(reached: Path) -> int:
    """0 while nobody is there."""
    return int(reached.read_text() or 0) if reached.exists() else 0


# --- the groups -------------------------------------------------------------------------------------------------------


def at_every_point(test: KillTest) -> dict[str, Verdict]:
    """Two drivers are killed: only two tasks can stand still at a time."""
    groups = ((*ON_THE_DRIVER, *IN_TASKS[:2]), (IN_TASKS[2], IN_THE_BROKER))
    jobs = {point: job for points in groups for point, job in test.killed_at(LOCAL, points).items()}
    return {point: test.finish(job) for point, job in jobs.items()}


def on_a_cluster(test: KillTest) -> dict[str, Verdict]:
    """An executor is lost with its Python, a Python worker alone, and then the driver with all of its executors."""
    found = {}
    with test.open_driver(CLUSTER) as driver:
        job, pid = test.stop_at(driver, "mid-append")
        kill(executor_of(pid))
        driver.expect_success(JOB_TIMEOUT_S)
        found["mid-append"] = test.verdict(job)
        job, pid = test.stop_at(driver, "acked-not-returned")
        kill(pid)
        driver.expect_success(JOB_TIMEOUT_S)
        found["acked-not-returned"] = test.verdict(job)
        job, _ = test.stop_at(driver, "intent-reply-lost")
    found["intent-reply-lost"] = test.finish(job)
    return found


def without_intent(test: KillTest) -> dict[str, Verdict]:
    """The reply that is lost is the one to the decision, wherever that is."""
    jobs = test.killed_at(LOCAL, (POINT_OF_THE_DECISION, IN_THE_BROKER))
    return {
        "intent-reply-lost": test.finish(jobs[POINT_OF_THE_DECISION]), IN_THE_BROKER: test.finish(jobs[IN_THE_BROKER])
    }  # fmt: skip
