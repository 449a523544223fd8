"""ConsumerStats and PublisherStats, as Pulsar has them."""

from __future__ import annotations

from typing import Any

from magnetar.admin.stats.rates import RateBook, iso
from magnetar.broker.dispatch.statistics import ConsumerStatistics
from magnetar.broker.publishing.producers import AccessMode, Producer
from magnetar.broker.subscriptions.consumer import Consumer

_ACCESS_MODES = {
    AccessMode.SHARED: "Shared",
    AccessMode.EXCLUSIVE: "Exclusive",
    AccessMode.WAIT_FOR_EXCLUSIVE: "WaitForExclusive",
    AccessMode.EXCLUSIVE_WITH_FENCING: "ExclusiveWithFencing",
}


def publisher_stats(producer: Producer, rates: RateBook) -> dict[str, Any]:
    messages, size, chunks = rates.of_producer(producer)
    return {
        "accessMode": _ACCESS_MODES[producer.options.access_mode],
        "msgRateIn": messages,
        "msgThroughputIn": size,
        "averageMsgSize": average(size, messages),
        "chunkedMessageRate": chunks,
        "producerId": producer.producer_id,
        "supportsPartialProducer": producer.options.supports_partial,
        "producerName": producer.name,
        "address": f"/{producer.address}",
        "connectedSince": iso(producer.connected_ms),
        "clientVersion": producer.client_version,
        "metadata": dict(producer.options.metadata),
    }


def consumer_stats(
    consumer: Consumer, known: ConsumerStatistics | None, rates: RateBook, *, is_keyed: bool
) -> dict[str, Any]:
    messages, size, redelivered, acknowledged = rates.of_consumer(consumer)
    about = consumer.about
    stats: dict[str, Any] = {"appId": about.app_id} if about.app_id else {}
    stats |= {
        "msgRateOut": messages,
        "msgThroughputOut": size,
        "bytesOutCounter": consumer.delivered_bytes,
        "msgOutCounter": consumer.delivered_messages,
        "msgRateRedeliver": redelivered,
        "messageAckRate": acknowledged,
        "chunkedMessageRate": 0.0,
        "consumerName": consumer.name,
        "availablePermits": consumer.permits,
        "unackedMessages": consumer.unacked_messages,
        "avgMessagesPerEntry": round(_messages_per_entry(consumer)),
        "blockedConsumerOnUnackedMsgs": consumer.is_blocked,
        **_draining(known, is_keyed=is_keyed),
        "address": f"/{about.address}",
        "connectedSince": iso(about.connected_ms),
        "clientVersion": about.client_version,
        "lastAckedTimestamp": consumer.last_acked_ms,
        "lastConsumedTimestamp": consumer.last_delivered_ms,
        "firstMessagesSentTimestamp": consumer.first_delivered_ms,
        "lastConsumedFlowTimestamp": consumer.last_flow_ms,
        "firstConsumedFlowTimestamp": consumer.first_flow_ms,
    }
    if is_keyed and known is not None:
        stats["keyHashRangeArrays"] = [list(each) for each in known.key_ranges]
    return stats | {
        "metadata": dict(about.properties),
        "lastAckedTime": iso(consumer.last_acked_ms),
        "lastConsumedTime": iso(consumer.last_delivered_ms),
    }


def _messages_per_entry(consumer: Consumer) -> float:
    return consumer.messages_per_entry or average(consumer.delivered_messages, consumer.delivered_entries)


def _draining(known: ConsumerStatistics | None, *, is_keyed: bool) -> dict[str, Any]:
    draining = () if known is None else known.draining_hashes
    stats: dict[str, Any] = {
        "drainingHashesCount": len(draining),
        "drainingHashesClearedTotal": 0,
        "drainingHashesUnackedMessages": sum(each.unacked_entries for each in draining),
    }
    if is_keyed:
        stats["drainingHashes"] = [
            {"hash": each.key_hash, "unackMsgs": each.unacked_entries, "blockedAttempts": 0} for each in draining
        ]
    return stats


def average(size: float, messages: float) -> float:
    return size / messages if messages else 0.0
