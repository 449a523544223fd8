"""Watch: what is seen of a world of staging, besides all of sim/topics/watch.py, and what must hold there.

- history: what was planned, what complete executions held, what was committed: the truth to compare with.
- row: `owner|epoch|row|token`: the token is that of the attempt that evaluated it, so any row says whose it is.
- execution: one attempt of every partition, brought to a commit; its rows by topic, in the order of an intent.
- observed: as sim/topics/observe.py; and intents that are too large for a node are known before they are named in one.

Invariant: I1 to I11 of docs/staging.md; those of ledgers and topics hold beside them. I1 to I5, I8 and I9 are about
           what is in the topics when all is over. I3 and I6 are also about what is decided, I7 about ledgers at the
           moment they are deleted, I10 about what is left (scenario.py), I11 about attempts when they fail
           (workload.py).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from unittest.mock import patch

from magnetar.errors import MagnetarError
from magnetar.metadata.store import Create, Delete, Put
from magnetar.sim.ledgers.invariants import FenceIsForEver, LedgerMetadataChanges, NoIsAPromise, NothingOutlives
from magnetar.sim.ledgers.watch import Invariant, LedgerChange
from magnetar.sim.staging.options import StagingOptions
from magnetar.sim.topics import observe as topics
from magnetar.sim.topics.invariants import Chain, Deduplicated, InOrder, NoDuplicate, NoLostWrite, OneVoice
from magnetar.sim.topics.watch import TopicInvariant, TopicWatch
from magnetar.sim.world import World
from magnetar.staging import intents
from magnetar.staging.intents import Intents
from magnetar.staging.records import Intent, OwnerRecord
from magnetar.staging.register import SINKS, epochs_in, owner_of

# --- history ----------------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    number: int
    topic: str


@dataclass(slots=True)
class Execution:
    token: int
    rows: Mapping[str, Sequence[str]]
    """By topic; topics without any are left out."""


@dataclass(slots=True)
class JobHistory:
    """The history of one owner. The checkpoint of a query is the part that its drivers remember."""

    owner: str
    epochs: int
    plans: dict[int, list[Row]] = field(default_factory=dict)
    executions: dict[int, list[Execution]] = field(default_factory=dict)
    committed: int = -1
    """The last epoch that a driver noted as committed."""
    tokens: int = 0

    def next_token(self) -> int:
        self.tokens += 1
        return self.tokens

    @property
    def is_done(self) -> bool:
        return self.committed == self.epochs - 1


# --- the watch --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Decided:
    """An intent that was created."""

    intent: Intent
    by: str


class StagingWatch(TopicWatch):
    def __init__(self, world: World, options: StagingOptions, invariants: Sequence[type[Invariant]]) -> None:
        super().__init__(world, options.world, invariants)
        self.staging_options = options
        self.jobs: list[JobHistory] = []
        """A list, not a table by owner: two jobs must not share an owner, and the audit finds it if they do."""
        self.large: dict[int, Intent] = {}
        """The ledger of an intent that is in one → the intent."""
        self.records: dict[str, OwnerRecord] = {}
        self.intents: dict[tuple[str, int], Intent] = {}
        """Owner and epoch → the intent that exists now."""
        self.decided: dict[tuple[str, int], list[Decided]] = {}
        """All that ever were."""

    def on_operation(self, operation: Create | Put | Delete, result: Any, by: str) -> None:
        super().on_operation(operation, result, by)
        if not operation.path.startswith(SINKS + "/"):
            return
        name, *below = operation.path.removeprefix(SINKS + "/").split("/")
        owner = owner_of(name)
        if not below:
            if isinstance(operation, Delete):
                self.records.pop(owner, None)
            else:
                self.on_record(owner, OwnerRecord.from_bytes(operation.value), by)
        elif epochs := epochs_in(below[:1]):
            if isinstance(operation, Create):
                self.on_intent(owner, epochs[0], self._intent(operation.value), by)
            elif isinstance(operation, Delete):
                self.intents.pop((owner, epochs[0]), None)

    def _intent(self, value: bytes) -> Intent:
        if not value.startswith(b"{"):
            return Intent.from_bytes(value)
        return self.large[int(json.loads(value)["ledger"])]

    def on_intent(self, owner: str, epoch: int, intent: Intent, by: str) -> None:
        self.counters["intents"] += 1
        self.note(f"{by} decides on epoch {epoch} of {owner}: ledgers {intent.ledgers}")
        before = self.decided.setdefault((owner, epoch), [])
        if before:
            self.violated("I6", f"epoch {epoch} of {owner} is decided by {by} again, after {before[0].by}")
        later = [other for name, other in self.intents if name == owner]
        if later:
            self.violated("I3", f"epoch {epoch} of {owner} is decided while {later} is not done")
        if missing := [ledger_id for ledger_id in intent.ledgers if ledger_id not in self.ledgers]:
            self.violated("I7", f"epoch {epoch} of {owner} is decided by {by}, and its ledgers {missing} are deleted")
        before.append(Decided(intent, by))
        self.intents[owner, epoch] = intent

    def on_record(self, owner: str, record: OwnerRecord, by: str) -> None:
        known = self.records.get(owner, OwnerRecord())
        if record.last_done < known.last_done:
            self.violated("I3", f"{by} sets {owner} back from epoch {known.last_done} to {record.last_done}")
        if record.last_done > known.last_done:
            self.note(f"epoch {record.last_done} of {owner} is done, says {by}")
        self.records[owner] = record

    def is_decided(self, owner: str, epoch: int) -> bool:
        return self.records.get(owner, OwnerRecord()).decided >= epoch

    def on_repeat_failed(self, owner: str, epoch: int, token: int, error: MagnetarError) -> None:
        """An attempt that began when its epoch was decided. One that could not ask has a note of that."""
        if not getattr(error, "__notes__", ()):
            self.violated("I11", f"attempt {token} repeats epoch {epoch} of {owner}, and fails: {error}")


# --- observed ---------------------------------------------------------------------------------------------------------

_SMALL = 50  # Bytes: no intent is smaller.


@contextlib.contextmanager
def observed(watch: StagingWatch) -> Iterator[None]:
    prepare = Intents.prepare

    async def prepare_seen(self: Intents, intent: Intent) -> Intent:
        prepared = await prepare(self, intent)
        if prepared.own_ledger is not None:
            watch.large[prepared.own_ledger] = prepared
        return prepared

    limit = _SMALL if watch.staging_options.large_intents else intents.INTENT_BYTES_MAX
    with (
        topics.observed(watch),
        patch.object(Intents, "prepare", prepare_seen),
        patch.object(intents, "INTENT_BYTES_MAX", limit),
    ):
        yield


# --- invariants -------------------------------------------------------------------------------------------------------


class NeverDeleted(TopicInvariant):
    """What an intent names stays until its epoch is done."""

    id = "I7"
    watch: StagingWatch

    def on_ledger_change(self, change: LedgerChange) -> None:
        if change.after is not None:
            return
        for (owner, epoch), intent in self.watch.intents.items():
            record = self.watch.records.get(owner)
            is_done = record is not None and record.last_done >= epoch
            if change.ledger_id in intent.ledgers and not is_done:
                self.violated(f"ledger {change.ledger_id} of epoch {epoch} of {owner} is deleted by {change.by}")


class OneExecution(TopicInvariant):
    """Each epoch is stored as one complete execution has it, in all topics; epochs are in order."""

    id = "I1"
    watch: StagingWatch

    def at_audit(self) -> None:
        for job in self.watch.jobs:
            found = {topic: self._texts(topic, job.owner) for topic in self.watch.told.audits}
            self._check_order(job, found)
            for epoch in range(job.committed + 1):
                self._check_epoch(job, epoch, _of_epoch(found, epoch))
            beyond = [text for texts in found.values() for text in texts if _epoch(text) > job.committed]
            if beyond:
                self.violated(f"{job.owner} has {beyond[:3]}, and committed up to {job.committed}")

    def _texts(self, topic: str, owner: str) -> list[str]:
        audit = self.watch.told.audits[topic]
        return [found.payload.decode() for found in audit if found.producer == owner]

    def _check_order(self, job: JobHistory, found: Mapping[str, Sequence[str]]) -> None:
        for topic, texts in found.items():
            epochs = [_epoch(text) for text in texts]
            if epochs != sorted(epochs):
                self.watch.violated("I3", f"epochs of {job.owner} in {topic} are in the order {epochs}")

    def _check_epoch(self, job: JobHistory, epoch: int, found: Mapping[str, Sequence[str]]) -> None:
        where = f"epoch {epoch} of {job.owner}"
        executions = [execution.rows for execution in job.executions.get(epoch, [])]
        if found in executions:
            self._check_rows(job, epoch, found)
            return
        for topic, texts in found.items():
            if len(set(texts)) != len(texts):
                self.violated(f"{where} has rows of {topic} twice: {texts}")
        parts = [[rows.get(topic) == texts for rows in executions] for topic, texts in found.items()]
        if parts and all(any(same) for same in parts):
            self.watch.violated("I2", f"{where} is of several executions: {found}")
        else:
            self.violated(f"{where} is of no execution: {found}; executions: {executions}")

    def _check_rows(self, job: JobHistory, epoch: int, found: Mapping[str, Sequence[str]]) -> None:
        decided = self.watch.decided.get((job.owner, epoch), [])
        wanted = sum(part.rows for each in decided[:1] for part in each.intent.parts)
        if (rows := sum(map(len, found.values()))) != wanted:
            self.watch.violated("I8", f"epoch {epoch} of {job.owner} has {rows} rows, and {wanted} were decided on")


def _epoch(text: str) -> int:
    return int(text.split("|")[1])


def _of_epoch(found: Mapping[str, Sequence[str]], epoch: int) -> dict[str, list[str]]:
    chosen = {topic: [text for text in texts if _epoch(text) == epoch] for topic, texts in found.items()}
    return {topic: texts for topic, texts in chosen.items() if texts}


ALL: tuple[type[Invariant], ...] = (
    FenceIsForEver,
    NoIsAPromise,
    LedgerMetadataChanges,
    NothingOutlives,
    Chain,
    OneVoice,
    Deduplicated,
    NoLostWrite,
    NoDuplicate,
    InOrder,
    NeverDeleted,
    OneExecution,
)
