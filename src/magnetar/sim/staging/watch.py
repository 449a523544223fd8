"""Watch: what is seen of a world of staging: intents and records as they change, besides all of topics/watch.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from magnetar.errors import MagnetarError
from magnetar.sim.ledgers.watch import Invariant
from magnetar.sim.staging.history import JobHistory
from magnetar.sim.staging.options import StagingOptions
from magnetar.sim.topics.watch import TopicWatch
from magnetar.sim.world import World
from magnetar.staging.records import Intent, OwnerRecord


@dataclass(frozen=True, slots=True)
class Decided:
    """An intent that was created."""

    intent: Intent
    by: str


class StagingWatch(TopicWatch):
    def __init__(self, world: World, options: StagingOptions, invariants: Sequence[type[Invariant]]) -> None:
        super().__init__(world, options.world, invariants)
        self.staging_options = options
        self.jobs: dict[str, JobHistory] = {}
        """By owner."""
        self.large: dict[int, Intent] = {}
        """The ledger of an intent that is in one → the intent."""
        self.records: dict[str, OwnerRecord] = {}
        self.intents: dict[tuple[str, int], Intent] = {}
        """Owner and epoch → the intent that is there now."""
        self.decided: dict[tuple[str, int], list[Decided]] = {}
        """All that ever were."""

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
