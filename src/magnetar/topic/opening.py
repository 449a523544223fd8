"""Opening a topic: from here on this broker owns its log, and whoever owned it before cannot acknowledge any more.

Order:     read the node; recover its last ledger, which fences the old owner; find the index to go on with; make a new
           ledger; write the node. Only then is anything appended. Of two brokers that open at the same moment one
           fails at the node; a broker that was only slow fails at its ledger or at the node.
Ended:     a topic that was terminated is opened for reading alone: no ledger is made, the node is not written.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from magnetar.errors import NoSuchLedgerError, TopicNotFoundError
from magnetar.topic.chain import LedgerSpan
from magnetar.topic.info import TopicInfo, is_offloaded
from magnetar.topic.info_store import NO_NODE, TopicInfoStore
from magnetar.topic.log_parts import LogParts
from magnetar.topic.node import TopicNode

log = logging.getLogger(__name__)


async def open_node(name: str, parts: LogParts, *, create: bool) -> TopicNode:
    """The node with the last ledger recovered. Nothing of it is written yet."""
    infos = TopicInfoStore(parts.store, parts.entropy)
    stored = await infos.read(name)
    if stored is None:
        if not create:
            raise TopicNotFoundError(f"topic {name} does not exist: create it first, or allow it to be made by use")
        return TopicNode(name, infos, TopicInfo(), NO_NODE)
    info = stored.value
    spans = await _recovered(name, info.spans, parts)
    return TopicNode(name, infos, replace(info, spans=spans), stored.version)


async def _recovered(name: str, spans: tuple[LedgerSpan, ...], parts: LogParts) -> tuple[LedgerSpan, ...]:
    if not spans or is_offloaded(spans[-1]):
        return spans
    *others, last = spans
    try:
        metadata = await parts.client.recover(last.ledger_id)
    except NoSuchLedgerError:  # Deleted when it was found empty, by a broker that went down before it wrote the node.
        log.warning("the last ledger of a topic is gone", extra={"topic": name, "ledger_id": last.ledger_id})
        return tuple(others)
    closed_ms = last.closed_ms or parts.entropy.wall_ms()
    return (*others, replace(last, entries=metadata.last_entry_id + 1, size_bytes=metadata.length, closed_ms=closed_ms))
