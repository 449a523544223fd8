"""The invariants of staging, I1 to I11 of docs/staging.md; those of ledgers and topics hold beside them.

At audit:  I1 to I5, I8 and I9 are about what is in the topics when all is over. I3 and I6 also about what is decided
           (watch.py), I7 about ledgers at the moment they are deleted, I10 about what is left (scenario.py), I11
           about attempts when they fail (jobs.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from magnetar.sim.ledgers.invariants.ledgers import FenceIsForEver, LedgerMetadataChanges, NoIsAPromise
from magnetar.sim.ledgers.invariants.limits import NothingOutlives
from magnetar.sim.ledgers.watch import Invariant, LedgerChange
from magnetar.sim.staging.watch import JobHistory, StagingWatch
from magnetar.sim.topics.invariants import Chain, Deduplicated, InOrder, NoDuplicate, NoLostWrite, OneVoice
from magnetar.sim.topics.watch import TopicInvariant


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
    """Each epoch is there as one complete execution has it, in all topics; epochs are in order."""

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
