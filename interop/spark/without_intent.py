"""The exactly-once sink with its decisive step taken out, to see that the kill tests notice.

Without an intent nothing says beforehand which ledgers an epoch is made of, nor that it was begun: whoever commits it
publishes what its tasks have staged just now. Here every commit first forgets what was decided of its epoch, and the
broker does not look whether it has copied some of it before. The publishing itself is then the decision, so the point
at which "the reply to the decision is lost" comes behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from magnetar.staging.intents import Intents, OwnerNode
from magnetar.staging.records import Staged
from magnetar.staging.sink import Sink

POINT_OF_THE_DECISION = "published"


def install_in_job() -> None:
    commit = Sink.commit

    async def forget_and_commit(sink: Sink, owner: str, epoch: int, staged: Sequence[Staged], **more: Any) -> None:
        await _forget(sink, owner, epoch)
        await commit(sink, owner, epoch, staged, **more)

    Sink.commit = forget_and_commit  # type: ignore[method-assign,assignment]


async def _forget(sink: Sink, owner: str, epoch: int) -> None:
    node = OwnerNode(sink._store, owner)
    found = await node.read()
    if found.record.decided >= epoch:
        await Intents(sink._store, sink._ledgers, sink._settings, owner).delete(epoch)
        record = replace(found.record, decided=epoch - 1, last_done=min(found.record.last_done, epoch - 1))
        await node.put(record, found.version)


def install_in_broker() -> None:
    from magnetar.broker.staged import publishing

    patch.object(publishing, "progress_of", lambda *_: None).start()  # Fails where there is no such function any more.
