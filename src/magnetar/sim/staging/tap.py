"""Taps: as topics/tap.py; and intents that are too large for a node are known before they are named in one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest.mock import patch

from magnetar.sim.staging.watch import StagingWatch
from magnetar.sim.topics import tap as topics
from magnetar.staging import intents
from magnetar.staging.intents import Intents
from magnetar.staging.records import Intent

_SMALL = 50  # Bytes: no intent is smaller.


@contextlib.contextmanager
def tapped(watch: StagingWatch) -> Iterator[None]:
    prepare = Intents.prepare

    async def prepare_seen(self: Intents, intent: Intent) -> Intent:
        prepared = await prepare(self, intent)
        if prepared.own_ledger is not None:
            watch.large[prepared.own_ledger] = prepared
        return prepared

    limit = _SMALL if watch.staging_options.large_intents else intents.INTENT_BYTES_MAX
    with (
        topics.tapped(watch),
        patch.object(Intents, "prepare", prepare_seen),
        patch.object(intents, "INTENT_BYTES_MAX", limit),
    ):
        yield
