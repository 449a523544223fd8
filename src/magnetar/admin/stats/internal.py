"""PersistentTopicInternalStats and ManagedLedgerInfo, as Pulsar has them: a topic's ledgers and cursors."""

from __future__ import annotations

import asyncio
import base64
from functools import partial
from typing import Any

from magnetar.admin.stats.rates import iso
from magnetar.broker.service import BrokerService
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.broker.topics.topic import Topic
from magnetar.errors import MagnetarError, NoNodeError
from magnetar.ids import LedgerId
from magnetar.ledger.client import LedgerClient
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.names import encode_name
from magnetar.runtime.slices import Slices
from magnetar.schemas.proto.schema_storage_pb2 import SchemaLocator
from magnetar.schemas.storage import schema_path
from magnetar.topic.chain import LedgerSpan
from magnetar.topic.cursor.cursors import Cursor
from magnetar.topic.log.managed_ledger import is_offloaded

_CURSOR_SECONDS_MAX = 10.0


async def internal_stats(service: BrokerService, topic: PersistentTopic, *, with_metadata: bool) -> dict[str, Any]:
    log, chain = topic.log, topic.log.chain
    spans = chain.spans
    current = spans[-1] if spans and not spans[-1].closed_ms else None
    client, slices, subscriptions = topic.ledger_client, service.slices, list(topic.subscriptions.values())
    return {
        "entriesAddedCounter": topic.publisher.entries_in,
        "numberOfEntries": chain.entries,
        "totalSize": chain.size_bytes,
        "currentLedgerEntries": 0 if current is None else current.entries,
        "currentLedgerSize": 0 if current is None else current.size_bytes,
        "lastLedgerCreatedTimestamp": await _created(service, None if current is None else current.ledger_id),
        "waitingCursorsCount": sum(await slices.map(partial(_is_waiting, topic=topic), subscriptions)),
        "pendingAddEntriesCount": log.appends_waiting,
        "lastConfirmedEntry": str(log.last_confirmed),
        "state": "Terminated" if log.is_terminated else "Fenced" if log.is_fenced else "LedgerOpened",
        "ledgers": [await _ledger_of(span, client, slices, with_metadata=with_metadata) for span in spans],
        "cursors": dict(await slices.map(lambda cursor: (cursor.name, _cursor(topic, cursor)), list(topic.cursors))),
        "properties": log.properties,
        "schemaLedgers": await _schema_ledgers(service, topic, client, with_metadata=with_metadata),
        "compactedLedger": await _compacted_ledger(topic, client, with_metadata=with_metadata),
    }


async def _created(service: BrokerService, ledger_id: int | None) -> str:
    if ledger_id is None:
        return iso(0)
    node = await service.resources.store.get(
        BookKeeperPaths(service.config.metadata.ledgers_root).ledger(LedgerId(ledger_id))
    )
    return iso(0 if node is None else node.created_ms)


def _is_waiting(subscription: Subscription, topic: PersistentTopic) -> bool:
    """Whether a consumer is connected and there is nothing to read."""
    next_read = subscription.statistics().next_read
    return bool(subscription.consumers) and next_read is not None and next_read > topic.log.last_confirmed


async def _ledger_of(span: LedgerSpan, client: LedgerClient, slices: Slices, *, with_metadata: bool) -> dict[str, Any]:
    await slices.turn()
    entries, size = (span.entries, span.size_bytes) if span.closed_ms else (0, 0)
    return await _ledger(client, span.ledger_id, entries, size, is_away=is_offloaded(span), with_metadata=with_metadata)


async def _ledger(
    client: LedgerClient, ledger_id: int, entries: int, size: int, *, is_away: bool, with_metadata: bool
) -> dict[str, Any]:
    shown: dict[str, Any] = {"ledgerId": ledger_id, "entries": entries, "size": size, "offloaded": is_away}
    if with_metadata:
        shown["metadata"] = await _metadata(client, ledger_id)
    return shown | {"underReplicated": False}


async def _metadata(client: LedgerClient, ledger_id: int) -> str:
    try:
        async with asyncio.timeout(_CURSOR_SECONDS_MAX):
            return _metadata_text(await client.metadata(ledger_id))
    except (MagnetarError, TimeoutError) as error:
        return f"unknown: {error}"


def _metadata_text(metadata: LedgerMetadata) -> str:
    ensembles = ", ".join(
        f"{fragment.first_entry_id}=[{', '.join(map(str, fragment.ensemble))}]" for fragment in metadata.fragments
    )
    custom = ", ".join(
        f"{name}=base64:{base64.b64encode(value).decode()}" for name, value in metadata.custom_metadata.items()
    )
    is_closed = metadata.state is LedgerState.CLOSED
    closed = f", length={metadata.length}, lastEntryId={metadata.last_entry_id}" if is_closed else ""
    digest = "" if metadata.digest_type is None else f", digestType={metadata.digest_type.name}, password=OMITTED"
    return (
        f"LedgerMetadata{{formatVersion={int(metadata.format_version)}, ensembleSize={metadata.ensemble_size}, "
        f"writeQuorumSize={metadata.write_quorum}, ackQuorumSize={metadata.ack_quorum}, "
        f"state={metadata.state.name}{closed}{digest}, "
        f"ensembles={{{ensembles}}}, customMetadata={{{custom}}}}}"
    )


def _cursor(topic: PersistentTopic, cursor: Cursor) -> dict[str, Any]:
    seen, chain = cursor.statistics(), topic.log.chain
    subscription = topic.subscriptions.get(cursor.name)
    next_read = None if subscription is None else subscription.statistics().next_read
    is_waiting = subscription is not None and _is_waiting(subscription, topic)
    read = chain.next_position(seen.mark_delete) if next_read is None else next_read
    return {
        "markDeletePosition": str(seen.mark_delete),
        "readPosition": str(read),
        "waitingReadOp": is_waiting,
        "pendingReadOps": 0,
        "messagesConsumedCounter": chain.entries - seen.backlog_entries,
        "cursorLedger": seen.ledger_id,
        "cursorLedgerLastEntry": seen.ledger_last_entry,
        "individuallyDeletedMessages": _ranges_text(cursor),
        "lastLedgerSwitchTimestamp": iso(0),
        "state": "Open",
        "active": subscription is not None and bool(subscription.consumers),
        "numberOfEntriesSinceFirstNotAckedMessage": chain.entries_between(seen.mark_delete, read)
        + (read > chain.last_confirmed),
        "totalNonContiguousDeletedMessagesRange": seen.ranges,
        "subscriptionHavePendingRead": is_waiting,
        "subscriptionHavePendingReplayRead": False,
        "properties": dict(cursor.long_properties),
    }


def _ranges_text(cursor: Cursor) -> str:
    """Writes ranges open at the lower end, as Pulsar does."""
    ranges = [f"({first.previous!s}..{last!s}]" for first, last in cursor.acknowledged_ranges()]
    return f"[{','.join(ranges)}]"


async def _schema_ledgers(
    service: BrokerService, topic: PersistentTopic, client: LedgerClient, *, with_metadata: bool
) -> list[dict[str, Any]]:
    node = await service.resources.cache.get(schema_path(topic.name.schema_name))
    if node is None or not node.value:
        return []
    ledgers = [each.position.ledgerId for each in SchemaLocator.FromString(node.value).index]
    found = []
    for ledger_id in ledgers:
        try:
            async with asyncio.timeout(_CURSOR_SECONDS_MAX):
                metadata = await client.metadata(ledger_id)
        except (MagnetarError, TimeoutError):
            continue
        entries, size = metadata.last_entry_id + 1, metadata.length
        found.append(await _ledger(client, ledger_id, entries, size, is_away=False, with_metadata=with_metadata))
    return found


async def _compacted_ledger(topic: PersistentTopic, client: LedgerClient, *, with_metadata: bool) -> dict[str, Any]:
    compacted = topic.compaction.view.compacted
    if compacted is None:
        return {"ledgerId": -1, "entries": -1, "size": -1, "offloaded": False, "underReplicated": False}
    return await _ledger(
        client, compacted.ledger_id, compacted.entries, compacted.size_bytes, is_away=False, with_metadata=with_metadata
    )


async def internal_info(service: BrokerService, topic: PersistentTopic) -> dict[str, Any]:
    """Returns the node of the topic's log, and those of its cursors."""
    store, path = service.resources.store, topic.name.log_path
    node = await store.get(path)
    if node is None:
        raise NoNodeError(f"{path} does not exist any more")
    cursors = {}
    for cursor in topic.cursors:
        seen = cursor.statistics()
        of_cursor = await store.get(f"{path}/{encode_name(cursor.name)}") if cursor.is_durable else None
        if of_cursor is not None:
            cursors[cursor.name] = {
                "version": of_cursor.version,
                "creationDate": iso(of_cursor.created_ms),
                "modificationDate": iso(of_cursor.modified_ms),
                "cursorsLedgerId": seen.ledger_id,
                "markDelete": {
                    "ledgerId": seen.stored_mark_delete.ledger_id,
                    "entryId": seen.stored_mark_delete.entry_id,
                },
            }
    return {
        "version": node.version,
        "creationDate": iso(node.created_ms),
        "modificationDate": iso(node.modified_ms),
        "ledgers": await service.slices.map(_info_of, topic.log.chain.spans),
        "cursors": cursors,
    }


def _info_of(span: LedgerSpan) -> dict[str, Any]:
    return {
        "ledgerId": span.ledger_id,
        "entries": span.entries,
        "size": span.size_bytes,
        "timestamp": span.closed_ms,
        "isOffloaded": is_offloaded(span),
    }


_NO_CURSOR: dict[str, Any] = {
    **dict.fromkeys(
        (
            "pendingReadOps",
            "messagesConsumedCounter",
            "cursorLedger",
            "cursorLedgerLastEntry",
            "numberOfEntriesSinceFirstNotAckedMessage",
            "totalNonContiguousDeletedMessagesRange",
        ),
        0,
    ),
    **dict.fromkeys(
        ("waitingReadOp", "active", "subscriptionHavePendingRead", "subscriptionHavePendingReplayRead"), False
    ),
}


def fleeting_internal_stats(topic: Topic) -> dict[str, Any]:
    nothing = ("numberOfEntries", "totalSize", "currentLedgerEntries", "currentLedgerSize")
    return {
        "entriesAddedCounter": topic.publisher.entries_in,
        **dict.fromkeys((*nothing, "waitingCursorsCount", "pendingAddEntriesCount"), 0),
        "cursors": {name: dict(_NO_CURSOR) for name in topic.subscriptions},
    }
