"""The metadata of a world of staging: each change of a record and of an intent is seen at the moment it is made."""

from __future__ import annotations

import json

from magnetar.config.metadata import MetadataConfig
from magnetar.metadata.local import Job, Outcome
from magnetar.metadata.requests import Transact
from magnetar.metadata.store import Check, Create, Delete, Operation, Put
from magnetar.runtime.entropy import Entropy
from magnetar.sim.staging.watch import StagingWatch
from magnetar.sim.topics.metadata import TopicMetadata
from magnetar.staging.paths import SINKS, epochs_in, owner_of
from magnetar.staging.records import Intent, OwnerRecord


class StagingMetadata(TopicMetadata):
    def __init__(self, entropy: Entropy, config: MetadataConfig, watch: StagingWatch) -> None:
        super().__init__(entropy, config, watch)
        self._staging = watch

    def on_done(self, job: Job, outcome: Outcome) -> None:
        super().on_done(job, outcome)
        work = job.work
        operations = work.operations if isinstance(work, Transact) else (work,)
        for operation in operations:
            if isinstance(operation, Create | Put | Delete) and operation.path.startswith(SINKS + "/"):
                self._on_change(operation, self.author_of(job.session_id))

    def _on_change(self, operation: Operation, by: str) -> None:
        assert not isinstance(operation, Check)
        name, *below = operation.path.removeprefix(SINKS + "/").split("/")
        owner, watch = owner_of(name), self._staging
        if not below:
            if isinstance(operation, Delete):
                watch.records.pop(owner, None)
            else:
                watch.on_record(owner, OwnerRecord.from_bytes(operation.value), by)
        elif epochs := epochs_in(below[:1]):
            self._on_intent_change(owner, epochs[0], operation, by)

    def _on_intent_change(self, owner: str, epoch: int, operation: Operation, by: str) -> None:
        watch = self._staging
        if isinstance(operation, Create):
            watch.on_intent(owner, epoch, self._intent(operation.value), by)
        elif isinstance(operation, Delete):
            watch.intents.pop((owner, epoch), None)

    def _intent(self, value: bytes) -> Intent:
        if not value.startswith(b"{"):
            return Intent.from_bytes(value)
        return self._staging.large[int(json.loads(value)["ledger"])]
