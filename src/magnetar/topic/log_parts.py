"""What a topic's log is made of, and whom it tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from magnetar.errors import MagnetarError
from magnetar.ledger.client import LedgerClient
from magnetar.metadata.store import MetadataStore
from magnetar.runtime.entropy import Entropy
from magnetar.topic.position import Position
from magnetar.topic.tail_cache import TailCache


@dataclass(frozen=True, slots=True)
class LogParts:
    """Shared by all topics of a broker; none of it is owned by a log."""

    client: LedgerClient
    store: MetadataStore
    entropy: Entropy
    tail_cache: TailCache


class LogListener(Protocol):
    """Whoever appends. Called on the loop, and never from inside `append`."""

    def on_appended(self, first: Position, tokens: Sequence[Any]) -> None:
        """Consecutive entries of one ledger, one per token, are durable: in the order of `append`, once per run."""

    def on_append_failed(self, tokens: Sequence[Any], error: MagnetarError) -> None:
        """These entries were not acknowledged, and nothing more will be heard of them. With `error.outcome_unknown`
        the next owner may find them in the log all the same. `on_fenced` follows, unless the log was closed, deleted or
        terminated."""

    def on_room(self) -> None:
        """`has_room` is true again."""

    def on_fenced(self, error: MagnetarError) -> None:
        """Another owner took over, or this log cannot go on: the topic must be unloaded. Called once, last."""
