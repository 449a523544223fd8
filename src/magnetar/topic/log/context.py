"""LogContext and LogListener: what all logs of a broker share, and the interface that a log reports to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from magnetar.errors import MagnetarError
from magnetar.ledger.client import LedgerClient
from magnetar.metadata.store import MetadataStore
from magnetar.runtime.runtime import Entropy
from magnetar.topic.log.tail_cache import TailCache
from magnetar.topic.position import Position


@dataclass(frozen=True, slots=True)
class LogContext:
    """Is shared by all topics of a broker; a log owns none of it."""

    client: LedgerClient
    store: MetadataStore
    entropy: Entropy
    tail_cache: TailCache


class LogListener(Protocol):
    """Appends to a log. It is called on the loop, and never from inside `append`."""

    def on_appended(self, first: Position, tokens: Sequence[Any]) -> None:
        """Reports that consecutive entries of one ledger, one per token, are durable: in order, once per run."""

    def on_append_failed(self, tokens: Sequence[Any], error: MagnetarError) -> None:
        """Reports that these entries were not acknowledged, finally.

        With `error.outcome_unknown` the next owner may find them in the log anyway. `on_fenced` follows, unless the log
        was closed, deleted or terminated.
        """

    def on_room(self) -> None:
        """Reports that `has_room` is true again."""

    def on_fenced(self, error: MagnetarError) -> None:
        """Reports that another owner took over, or that the log has failed: unload the topic. Called once, last."""
