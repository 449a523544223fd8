"""Bugs of topics: deduplication that promises too early, that knows too little, or that refuses what it knows; and
cursors that are read by a broker that owns them no more."""

from __future__ import annotations

from typing import Final

from magnetar.broker.persistent_topic import PersistentTopic
from magnetar.broker.sequence_ids import SequenceIds
from magnetar.errors import NotAllowedError
from magnetar.sim.mutants.mutant import Mutant
from magnetar.sim.mutants.planting import Edit

MUTANTS: Final = [
    Mutant(
        number=34,
        kind="topics",
        sentence="a sequence id is recorded before its message is durable",
        caught_by=("T4", "C1"),
        budget=1_000,
        edits=[
            Edit(
                SequenceIds.judge,
                [
                    (
                        "self._pushed[producer] = max(sequence_id, highest_sequence_id)",
                        (
                            "self._pushed[producer] = max(sequence_id, highest_sequence_id)\n"
                            "        self.persisted[producer] = max(sequence_id, highest_sequence_id)"
                        ),
                    )
                ],
            )
        ],
    ),
    Mutant(
        number=35,
        kind="topics",
        sentence="a topic serves before it knows what its producers have stored",
        caught_by=("T4", "C2"),
        budget=1_000,
        edits=[
            Edit(
                PersistentTopic._open_rest,
                [("await self.check_dedup()", "self._dedup_check = self.loop.create_task(self._check_dedup_again())")],
            )
        ],
    ),
    Mutant(
        number=36,
        kind="topics",
        sentence="a producer that begins again with what is stored is refused as out of order",
        caught_by=("T4", "C3"),
        budget=1_000,
        edits=[
            Edit(
                PersistentTopic._is_new,
                [
                    (
                        "if verdict is Verdict.DUPLICATE:",
                        (
                            "if verdict is Verdict.DUPLICATE:\n"
                            '        raise OutOfOrderError(f"sequence id {publish[1]} is out of order")\n'
                            "    elif verdict is Verdict.DUPLICATE:"
                        ),
                    )
                ],
                names={"OutOfOrderError": NotAllowedError},
            )
        ],
    ),
    Mutant(
        number=69,
        kind="topics",
        sentence="a topic is opened by a broker that was overtaken before it read the cursors",
        caught_by=("T5",),
        budget=1_000,
        options={"faults": ("overtake", "reset")},
        edits=[Edit(PersistentTopic._check_that_nobody_overtook, [("await self.log.check_owner()", "return")])],
    ),
]
