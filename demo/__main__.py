"""`python -m demo`: a cluster under load loses a bookie, a broker and a session; an audit and a scrub give the verdict.

Purpose:   Each step says what happens, and what it means for the clients: which broker serves which topics, before and
           after, how long a producer waited, and how auto-recovery copies what the bookie had. The exit code is 1 if
           anything that was acknowledged is missing, or any replica of it.
Failure:   All processes are killed at the end, by the kernel if need be, and their directory is removed. The results
           stay in `build/demo`.
Read next: traffic.py (the load), questions.py (what the cluster is asked), repair.py (the progress of the repair),
           docs/audit.md (what is compared), docs/autorecovery.md,
           soak/cluster_chaos.py (the same faults and more, at random)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pulsar
from rich.console import Console
from rich.table import Table

from demo.audit import BUILD, audit, count_replicas, spark_for
from demo.questions import Questions
from demo.repair import follow_repair
from demo.shell import Narrator, run_demo
from demo.traffic import Traffic
from magnetar.cli.admin.client import AdminError
from magnetar.cli.pipeline import print_scrub
from magnetar.errors import ProcessFailedError
from magnetar.spark.pipelines.audit.table import print_result
from magnetar.spark.pipelines.audit.values import AuditResult
from magnetar.spark.pipelines.replicas import ScrubResult
from magnetar.testing.audit_clients import PulsarClient
from magnetar.testing.audit_log import AuditLog
from magnetar.testing.processes.child import wait_for
from magnetar.testing.processes.cluster import ProcessCluster
from magnetar.testing.processes.servers import BrokerProcess
from workloads.pulsar_load import connect

BROKERS, BOOKIES = 2, 4
TOPICS = ("clicks", "emails", "orders", "payments")
"""Each is in another bundle of its namespace, so that both brokers have some of them."""
WATCHED = "orders"
"""The topic that examples are about."""
SUBSCRIPTION = "billing"
RATE, SIZE = 200, 1_000  # Of each topic: messages a second, bytes. A laptop can also run everything else beside it.
MESSAGES_PER_STEP = 400  # On each topic, between two faults.
SESSION_S = 5
ENSEMBLE_SIZE, WRITE_QUORUM, ACK_QUORUM = 3, 3, 2
STEP_TIMEOUT_S = 120.0  # Ten seconds on an idle machine; the rest is for a busy one.
COPY_BYTES_PER_S = 250_000  # Of each bookie: so slow that the repair of these small ledgers can be watched.
SESSION_SETTING = f"metadata.session_timeout_ms={SESSION_S}_000"
BOOKIE_SETTINGS = (SESSION_SETTING, f"recovery.copy_bytes_per_s={COPY_BYTES_PER_S}")
BROKER_SETTINGS = (
    SESSION_SETTING,
    "broker.deduplication=true",
    "defaults.retention_minutes=60",  # Otherwise a slow machine deletes messages before the scrub counts them.
    "defaults.retention_mb=-1",
    f"topic.ensemble_size={ENSEMBLE_SIZE}",
    f"topic.write_quorum={WRITE_QUORUM}",
    f"topic.ack_quorum={ACK_QUORUM}",
)
OUTPUT = BUILD / "demo"

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Outcome:
    waits: dict[str, float]
    """For each fault the longest time, in seconds, that a producer waited for an acknowledgement."""
    audit: AuditResult
    scrub: ScrubResult

    @property
    def passed(self) -> bool:
        return self.audit.passed and self.scrub.is_clean


class Demo:
    def __init__(self, directory: Path, console: Console) -> None:
        self._directory = directory
        self._narrator = Narrator(console)
        self._say = self._narrator.say
        self._cluster = ProcessCluster(
            directory / "cluster", BOOKIES, BOOKIE_SETTINGS, brokers=BROKERS, broker_settings=BROKER_SETTINGS
        )
        self._killed: set[str] = set()
        self._waits: dict[str, float] = {}

    def run(self) -> Outcome:
        self._narrator.step(f"1. Start ZooKeeper, {BOOKIES} bookies, which store, and {BROKERS} brokers, which serve")
        with self._cluster as cluster, AuditLog(self._directory / "clients.jsonl", "demo") as log:
            self._questions = Questions(cluster)
            self._say(f"ready: {', '.join(cluster.members)}, each of them a process")
            urls = ",".join(broker.url.removeprefix("pulsar://") for broker in cluster.brokers)
            client = PulsarClient(self._connect(f"pulsar://{urls}"), log)
            self._publish_and_consume(client)
            self._follow_repair(self._kill_a_bookie())
            self._kill_a_broker()
            self._expire_a_session()
            self._finish()
            client.close()  # Only here: after a failure it would wait for brokers that do not answer.
            return self._judge()

    # --- the steps ----------------------------------------------------------------------------------------------------

    def _publish_and_consume(self, client: PulsarClient) -> None:
        self._narrator.step("2. Publish and consume with the official client of Apache Pulsar, with deduplication")
        self._traffic = Traffic(client, TOPICS, SUBSCRIPTION, rate=RATE, size=SIZE)
        self._say(f"{len(TOPICS)} producers send {RATE:,} messages a second each, and {len(TOPICS)} consumers follow")
        self._say(f"a message goes to {WRITE_QUORUM} bookies, and is acknowledged when {ACK_QUORUM} have it on disk")
        self._wait_acknowledged()
        self._say_owners(self._cluster.brokers[0])

    def _kill_a_bookie(self) -> str:
        """Returns its name."""
        self._narrator.step("3. Kill a bookie, which does not come back")
        asked = self._cluster.brokers[0]
        before = self._answer(lambda: self._questions.bookies_of(WATCHED, asked))
        victim = before[0]
        with self._measured("bookie killed"):
            self._kill(victim)
            self._say(f"kill -9 {victim}: the messages of {WATCHED!r} went to {_joined(before)}")
            self._wait(lambda: victim not in self._questions.bookies_of(WATCHED, asked), "a bookie in its place")
            now = self._answer(lambda: self._questions.bookies_of(WATCHED, asked))
            self._say(f"now they go to {_joined(now)}")
        return victim

    def _follow_repair(self, victim: str) -> None:
        self._narrator.step(f"4. Auto-recovery: the other bookies copy what {victim} had, under load")
        self._say(f"each copies at most {COPY_BYTES_PER_S // 1000} kB a second, so that it can be watched")
        names = self._questions.bookie_name
        lost = next(bookie.bookie_id for bookie in self._cluster.bookies if bookie.name == victim)
        asyncio.run(self._repaired(lost, names))

    async def _repaired(self, lost: str, names: Callable[[str], str]) -> None:
        async with asyncio.timeout(STEP_TIMEOUT_S):
            await follow_repair(self._cluster.metadata, lost, names, self._say, self._check)

    def _kill_a_broker(self) -> None:
        self._narrator.step("5. Kill a broker")
        victim, other = self._serving_and_other()
        with self._measured("broker killed"):
            self._kill(victim.name)
            self._say(f"kill -9 {victim.name}, with {self._traffic.unanswered:,} messages in progress")
            self._wait_session_ended(victim, asked=other)
            self._wait_owner(other, asked=other)
            self._say_owners(other)
            if reason := self._answer(lambda: self._questions.reason(WATCHED, other)):
                self._say(f"why {WATCHED!r} is there: {reason}")
        victim.start()
        self._killed.discard(victim.name)
        self._say(f"{victim.name} is started again, and serves no topics yet")

    def _expire_a_session(self) -> None:
        self._narrator.step("6. Let a session expire: a broker stands still for seconds, and then continues")
        victim, other = self._serving_and_other()
        with self._measured("session expired"):
            victim.pause()
            self._say(f"{victim.name} stands still (SIGSTOP), with {self._traffic.unanswered:,} messages in progress")
            self._wait_session_ended(victim, asked=other)
            self._open_topics(other)
            self._say(f"a new client opens the topics at {other.name}: {victim.name} cannot write to them any more")
            self._say_owners(other)
            victim.resume()
            self._say(f"{victim.name} continues (SIGCONT), and knows nothing of that yet")
            self._wait_owner(other, asked=victim)
            self._wait(lambda: victim in self._questions.live_brokers(other), f"a new session of {victim.name}")
            self._say(f"{victim.name} has noticed: it gets a new session, and sends its clients to {other.name}")

    def _finish(self) -> None:
        self._narrator.step("7. Compare what the clients logged with what is stored, message by message")
        self._traffic.finish()
        self._say(f"the clients are done: {self._traffic.sent:,} messages sent, {self._traffic.received:,} received")

    def _judge(self) -> Outcome:
        self._say("starting Spark for `magnetar pipeline audit`, which reads the topics directly from the bookies")
        with spark_for(OUTPUT) as spark:
            found = self._audit(spark)
            self._narrator.step("8. Read every replica of every entry from its bookie: `magnetar pipeline scrub`")
            scrubbed = count_replicas(spark, self._cluster.brokers[0])
            self._say(f"the scrub has verified {scrubbed.replicas:,} replicas")
        return Outcome(self._waits, found, scrubbed)

    def _audit(self, spark: Any) -> AuditResult:
        return audit(
            spark,
            self._cluster.brokers[0],
            logs=self._directory / "clients.jsonl",
            topics=TOPICS,
            title="A bookie and a broker were killed under load, and a session expired",
            output=OUTPUT,
            tell=self._say,
        )

    # --- parts --------------------------------------------------------------------------------------------------------

    def _connect(self, url: str) -> Any:
        return connect(url, self._directory / "client.log")

    def _kill(self, name: str) -> None:
        self._cluster.members[name].kill()
        self._killed.add(name)

    def _serving_and_other(self) -> tuple[BrokerProcess, BrokerProcess]:
        first, second = self._cluster.brokers
        owner = self._answer(lambda: self._questions.owner(WATCHED, first))
        return (first, second) if owner is first else (second, first)

    def _open_topics(self, broker: BrokerProcess) -> None:
        """As a client that starts now and knows this broker: it looks the topics up, which gives them an owner."""
        client = self._connect(broker.url)
        for topic in TOPICS:
            client.create_reader(topic, pulsar.MessageId.earliest).close()
        client.close()

    def _say_owners(self, asked: BrokerProcess) -> None:
        topics: dict[str, list[str]] = {}
        for topic in TOPICS:
            owner = self._answer(partial(self._questions.owner, topic, asked))
            topics.setdefault("no broker" if owner is None else owner.name, []).append(topic)
        self._say("; ".join(f"{name} serves {_joined(served)}" for name, served in sorted(topics.items())))

    @contextmanager
    def _measured(self, fault: str) -> Iterator[None]:
        """The block is the fault; the load must continue after it."""
        self._traffic.forget_waits()
        yield
        self._wait_acknowledged()
        self._waits[fault] = self._traffic.longest_wait_s
        self._say(f"all producers continue; the longest wait for an acknowledgement: {_seconds(self._waits[fault])}")

    def _wait_acknowledged(self) -> None:
        self._traffic.wait_acknowledged(MESSAGES_PER_STEP, self._check, STEP_TIMEOUT_S)

    def _wait_session_ended(self, broker: BrokerProcess, asked: BrokerProcess) -> None:
        self._wait(lambda: broker not in self._questions.live_brokers(asked), f"the end of {broker.name}'s session")
        self._say(f"ZooKeeper has ended the session of {broker.name}, after {SESSION_S} s without a sign of life")

    def _wait_owner(self, owner: BrokerProcess, asked: BrokerProcess) -> None:
        self._wait(
            lambda: all(self._questions.owner(topic, asked) is owner for topic in TOPICS),
            f"the take-over of all topics by {owner.name}, as {asked.name} sees it",
        )

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        def is_so() -> bool:
            self._check()
            with suppress(AdminError):  # A topic is changing its owner.
                return condition()
            return False

        wait_for(is_so, what=what, timeout=STEP_TIMEOUT_S)

    def _answer(self, question: Callable[[], Answer]) -> Answer:
        answers: list[Answer] = []

        def is_answered() -> bool:
            answers.append(question())
            return True

        self._wait(is_answered, "an answer of the admin interface")
        return answers[0]

    def _check(self) -> None:
        """ProcessFailedError if a process has ended that was not killed here."""
        for server in [*self._cluster.brokers, *self._cluster.bookies]:
            if not server.is_running and server.name not in self._killed:
                raise ProcessFailedError(
                    f"{server.name} ended by itself; its log ends with:\n{server.child.log_tail()}"
                )


def print_outcome(outcome: Outcome, console: Console) -> None:
    console.print()
    table = Table(title="The longest time that a producer waited for an acknowledgement", title_style="italic")
    for fault in outcome.waits:
        table.add_column(fault, justify="right")
    table.add_row(*map(_seconds, outcome.waits.values()))
    console.print(table)
    print_result(outcome.audit, console)
    print_scrub(outcome.scrub, None)
    if not outcome.scrub.is_clean:
        console.print("[red]FAILED[/]: replicas are missing or damaged", highlight=False)


def _seconds(wait: float) -> str:
    return f"{wait:.1f} s" if wait >= 1 else f"{wait * 1000:.0f} ms"


def _joined(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


if __name__ == "__main__":
    run_demo(lambda directory, console: Demo(directory, console).run(), print_outcome)
