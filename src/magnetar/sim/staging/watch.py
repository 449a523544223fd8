"""Watch: what is seen of a world of staging: intents and records as they change, besides all of sim/topics/watch.py.

History:   what was planned, what complete executions held, what was committed: the truth to compare with.
Row:       `owner|epoch|row|token`: the token is that of the attempt that evaluated it, so any row says whose it is.
Execution: one attempt of every partition, brought to a commit; its rows by topic, in the order of an intent.
Observed:  as sim/topics/observe.py; and intents that are too large for a node are known before they are named in one.
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
from magnetar.sim.ledgers.watch import Invariant
from magnetar.sim.staging.options import StagingOptions
from magnetar.sim.topics import observe as topics
from magnetar.sim.topics.watch import TopicWatch
from magnetar.sim.world import World
from magnetar.staging import intents
from magnetar.staging.intents import Intents
from magnetar.staging.paths import SINKS, epochs_in, owner_of
from magnetar.staging.records import Intent, OwnerRecord

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
    """Of one owner. The checkpoint of a query is what of this its drivers remember."""

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
        """Owner and epoch → the intent that is there now."""
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
