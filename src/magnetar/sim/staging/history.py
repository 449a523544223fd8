"""History of jobs: what was planned, what complete executions held, what was committed. The truth to compare with.

Row:       `owner|epoch|row|token`: the token is that of the attempt that evaluated it, so any row says whose it is.
Execution: one attempt of every partition, brought to a commit; its rows by topic, in the order of an intent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


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
