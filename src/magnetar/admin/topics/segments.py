"""A topic as ledgers, for clients that read it from the bookies themselves. Paths that Pulsar does not have.

`segments` returns every ledger of the topic with its first index, its metadata and what opens it; how far the topic is
confirmed at the same moment; and, for staged messages, the longest delay after their publish time. The topic is loaded,
and never made. `wait` returns the same end, as soon as it has moved: it needs no thread and no polling, but a bounded
number of requests that wait. `cut` finds where to stop reading after about this many messages (by indexes) and bytes
(estimated by the mean size of each ledger's entries).

Failure:   Entries that cannot be read do not keep a client from the others: what only they contain is left out.
Read next: segment_book.py; spark/cluster.py (the client)
"""

from __future__ import annotations

import base64
from typing import Any, Final

from magnetar.admin.http.call import Call, Query, Route
from magnetar.admin.http.errors import BAD_REQUEST, NOT_FOUND, RestError
from magnetar.admin.topics.segment_book import UNREADABLE, LedgerFacts
from magnetar.broker.staged.progress import lag_ms_of
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.errors import MetadataUnavailableError, NoSuchLedgerError, TopicNotFoundError
from magnetar.topic.chain import LedgerChain, LedgerSpan
from magnetar.topic.log.log import TopicLog
from magnetar.topic.log.managed_ledger import is_offloaded
from magnetar.topic.position import LATEST, Position
from magnetar.wire.bookkeeper.digests import DigestType

_TRIMMED_MAX: Final = 5  # How often ledgers may be trimmed while they are described.
_WAIT_MS_MAX: Final = 20_000
_WAIT_MS: Final = 500
UNKNOWN_INDEX: Final = -1
"""Stands for the first index of a ledger whose first entry cannot be read."""


async def cluster(call: Call) -> dict[str, Any]:
    config = call.service.config
    return {
        "ledgersRoot": config.metadata.ledgers_root,
        "ensembleSize": config.topic.ensemble_size,
        "writeQuorum": config.topic.write_quorum,
        "ackQuorum": config.topic.ack_quorum,
        "digestType": DigestType.CRC32C.name,
        "maxMessageBytes": config.pulsar.message_bytes_max,
    }


async def segments(call: Call) -> dict[str, Any]:
    first = call.query_number("from", 0)
    topic = await _existing(call)
    log, chain = topic.log, topic.log.chain
    for _ in range(_TRIMMED_MAX):
        known = chain.spans  # A snapshot of one moment: nothing is awaited before `earliest`.
        spans = [span for span in known if span.ledger_id >= first]
        end, earliest = _end(topic), chain.first_position
        try:
            facts = await call.context.segments.facts_of(log, topic.ledger_client, spans)
        except NoSuchLedgerError:
            continue
        return {
            "topic": str(topic.name),
            **end,
            "earliest": _json(earliest),
            "terminated": log.is_terminated,
            "publishLagMs": lag_ms_of(log.properties),
            "ledgers": await call.service.slices.map(
                lambda pair: _ledger(*pair, is_last=pair[0] is known[-1], next_index=end["nextIndex"]),  # noqa: B023
                list(zip(spans, facts, strict=True)),
            ),
        }
    raise MetadataUnavailableError(f"ledgers of {topic.name} are trimmed faster than they can be listed: try again")


def _ledger(span: LedgerSpan, facts: LedgerFacts, *, is_last: bool, next_index: int) -> dict[str, Any]:
    return {
        "ledgerId": span.ledger_id,
        "entries": span.entries,
        "sizeBytes": span.size_bytes,
        "closed": bool(span.closed_ms) or not is_last,
        "closedMs": span.closed_ms,
        "firstIndex": _first_index(span, facts, next_index),
        "firstPublishMs": facts.first_publish_ms,
        "offloaded": is_offloaded(span),
        "metadata": base64.b64encode(facts.encoded).decode(),
        "digestType": facts.digest_type.name,
        "password": base64.b64encode(facts.password).decode(),
    }


def _first_index(span: LedgerSpan, facts: LedgerFacts, next_index: int) -> int:
    if facts.first_index is not None:
        return facts.first_index
    return UNKNOWN_INDEX if span.entries else next_index


async def wait(call: Call) -> dict[str, Any]:
    after = _position(call, "after")
    timeout_ms = min(max(call.query_number("timeoutMs", _WAIT_MS), 0), _WAIT_MS_MAX)
    topic = await _existing(call)
    has_waited = await call.context.segments.wait_beyond(topic.log, after, timeout_ms / 1000)
    return {**_end(topic), "busy": not has_waited}


def _end(topic: PersistentTopic) -> dict[str, Any]:
    return {"lastConfirmed": _json(topic.log.last_confirmed), "nextIndex": topic.log.next_confirmed_index}


async def cut(call: Call) -> dict[str, Any]:
    start, wanted = _position(call, "from"), _position(call, "to", LATEST)
    messages, size_bytes = call.query_number("messages", 0), call.query_number("bytes", 0)
    if messages < 0 or size_bytes < 0:
        raise RestError(BAD_REQUEST, "messages and bytes must be at least 1, or be omitted")
    topic = await _existing(call)
    chain = topic.log.chain
    start, end = chain.at_or_after(start), min(wanted, chain.end)
    if start >= end:
        return _json(end)
    least = chain.next_position(start)
    if messages:
        end = min(end, max(least, await _position_after_messages(topic.log, start, messages)))
    if size_bytes:
        end = min(end, max(least, position_after_bytes(chain, start, size_bytes)))
    return _json(end)


async def _position_after_messages(log: TopicLog, start: Position, messages: int) -> Position:
    """Counts every entry as one message where an index cannot be read, so that a reader can get past such entries."""
    try:
        return await log.position_at_index(await log.index_of(start) + messages)
    except UNREADABLE as error:
        if error.retryable:
            raise
        return log.chain.next_position(log.chain.position_after(start, messages - 1))


def position_after_bytes(chain: LedgerChain, start: Position, size_bytes: int) -> Position:
    """Returns the first entry from `start` on that does not fit, as if entries of one ledger were of the same size."""
    room = size_bytes
    for span in chain.spans:
        if span.ledger_id < start.ledger_id or not span.entries:
            continue
        first = start.entry_id if span.ledger_id == start.ledger_id else 0
        mean = max(1, span.size_bytes // span.entries)
        entries = max(0, span.entries - first)
        if room < entries * mean:
            return Position(span.ledger_id, first + room // mean)
        room -= entries * mean
    return chain.end


async def _existing(call: Call) -> PersistentTopic:
    """Returns the topic, loaded. A partition that was never used is made, as its topic exists."""
    try:
        return await call.persistent()
    except (TopicNotFoundError, RestError) as error:
        if isinstance(error, RestError) and error.status != NOT_FOUND:
            raise
    name = call.topic
    if name.is_partition and await call.service.resources.partitioned_topics.get(name.without_partition()) is not None:
        return await call.service.persistent_topic(name, create=True)
    raise RestError(
        NOT_FOUND,
        f"topic {name} does not exist: check the name, or create it with `magnetar topics create`; "
        "reading does not create topics",
    )


def _position(call: Call, parameter: str, default: Position | None = None) -> Position:
    text = call.query.get(parameter)
    if text is None and default is not None:
        return default
    ledger, _, entry = (text or "").partition(":")
    try:
        return Position(int(ledger), int(entry))
    except ValueError:
        raise RestError(BAD_REQUEST, f"?{parameter}= must be LEDGER:ENTRY, not {text!r}") from None


def _json(position: Position) -> dict[str, Any]:
    return {"ledgerId": position.ledger_id, "entryId": position.entry_id}


_TOPIC = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"
_FROM = (Query("from", "leave out ledgers below this one", "integer"),)
ROUTES = [
    Route("GET", "/admin/v2/magnetar/cluster", "Get how this cluster writes ledgers", cluster),
    Route(
        "GET",
        f"{_TOPIC}/segments",
        "List the ledgers of a topic with what is needed to read them",
        segments,
        query=_FROM,
    ),
    Route(
        "GET",
        f"{_TOPIC}/segments/wait",
        "Wait until a topic has a later message, and get its last position",
        wait,
        query=(
            Query("after", "a position, as LEDGER:ENTRY", "string"),
            Query("timeoutMs", f"how long at most; {_WAIT_MS} if not given, at most {_WAIT_MS_MAX}", "integer"),
        ),
    ),
    Route(
        "GET",
        f"{_TOPIC}/cut",
        "Find where to stop reading after about this many messages and bytes",
        cut,
        query=(
            Query("from", "where reading begins, as LEDGER:ENTRY", "string"),
            Query("to", "where it ends at the latest, as LEDGER:ENTRY", "string"),
            Query("messages", "the limit of messages, by whole entries, at least one entry", "integer"),
            Query("bytes", "the limit of bytes, estimated", "integer"),
        ),
    ),
]
