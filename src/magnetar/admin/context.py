"""AdminContext: what all requests share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from magnetar.admin.segment_book import SegmentBook
from magnetar.admin.stats.rates import RateBook
from magnetar.bookie.http import Health
from magnetar.broker.broker import Broker
from magnetar.runtime.metrics import Metrics


@dataclass(frozen=True, slots=True)
class AdminContext:
    broker: Broker
    metrics: Metrics
    health: Callable[[], Health]
    rates: RateBook
    segments: SegmentBook = field(default_factory=SegmentBook)
