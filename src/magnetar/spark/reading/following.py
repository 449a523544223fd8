"""Follower: a streaming query on the driver: where it begins, how far a batch reaches, what its tasks read.

Invariant: an offset names the next message of each topic partition. It never goes back: otherwise there is an error
           (stream_offsets.py), or, without failOnDataLoss, a gap that is logged.
Order:     places such as "latest" are looked up once for each query. Spark asks for the initial offset twice before the
           first batch is read, and again after a restart in it: the end of that batch carries its beginning, and Spark
           shows the last offset to a reader that begins anew, as a batch from it to itself. Partitions and topics that
           appear while the query runs begin with their first message. One batch ends there, and reads nothing of them;
           the next begins there, and notices if that message was deleted since. Those that existed when the query began
           begin at startingOffsets.
           The ends of topics (`Heads`) are known at once or waited for. Each partition has one long poll at its broker,
           which is answered when something is new. A poll that has not returned at the end of a wait is kept for the
           next one: nothing is asked twice. A partition whose poll returned is asked again before its end is used: that
           answer may be old.
Failure:   Spark ends a query for any error here, so a broker that is away is waited for, up to a limit.
Limits:    one batch takes up to a number of messages and of bytes, divided by the waiting messages of each partition. A
           bounded number of partitions is polled; the others are asked at every call.
Read next: ranges.py (tasks), readers.py (Spark's side)
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from magnetar.errors import CheckpointMismatchError, DataLossError, MagnetarError, TopicNotFoundError
from magnetar.runtime.backoff import Backoff
from magnetar.runtime.gather import gather_bounded
from magnetar.runtime.system import SystemEntropy
from magnetar.spark.cluster import AT_ONCE_MAX, Cluster, Tail
from magnetar.spark.reading.fetching import first_open_chunk
from magnetar.spark.reading.options import LATEST, ReadOptions
from magnetar.spark.reading.ranges import Range, Split, check_names, ranges_between, spot_of, start_spot, stream_splits
from magnetar.spark.reading.stream_offsets import (
    UNKNOWN,
    Offset,
    Spot,
    Spots,
    begin_at,
    deleted,
    earliest_of,
    require_reached,
    tolerate,
)
from magnetar.spark.reading.topics import TopicAdmin, TopicPart, find_parts, is_meant
from magnetar.topic.position import EARLIEST

log = logging.getLogger(__name__)
T = TypeVar("T")

PATIENCE_S: Final = 120.0  # For a broker that is away: a restart, or a new owner of the topic.
LOOK_S: Final = 5.0  # The pause between two looks for new partitions and topics.
_UNKNOWN_WAITING: Final = 1_000_000  # The assumed number of waiting messages where it is not known.
POLL_MS: Final = 500
_POLLED_MAX: Final = AT_ONCE_MAX


# --- the ends of topics -----------------------------------------------------------------------------------------------


class Heads:
    def __init__(self, source: Cluster) -> None:
        self._source = source
        self._polls: dict[str, asyncio.Task[Tail]] = {}
        self.tails: dict[str, Tail] = {}

    async def refresh(self, parts: Iterable[str]) -> None:
        """Updates `tails` for these, without those that do not exist. Raises BrokerUnavailableError."""
        wanted = list(parts)
        for gone in sorted(self.tails.keys() - set(wanted)):
            self._forget(gone)
        stale = [part for part in wanted if not self._is_waiting(part)]
        tails = await gather_bounded([partial(self._tail_of, part) for part in stale], AT_ONCE_MAX)
        found = dict(zip(stale, tails, strict=True))
        self.tails.update({part: tail for part, tail in found.items() if tail is not None})
        for part, tail in found.items():
            if tail is None:
                self._forget(part)

    async def _tail_of(self, part: str) -> Tail | None:
        try:
            return await self._ask(part, 0)
        except TopicNotFoundError:
            return None

    async def wait_news(self) -> None:
        """Returns when one of the polled partitions has something new, or after a while."""
        for part in list(self.tails)[:_POLLED_MAX]:
            if not self._is_waiting(part):
                self._polls[part] = asyncio.get_running_loop().create_task(self._ask(part, POLL_MS))
        if self._polls:
            await asyncio.wait(self._polls.values(), timeout=POLL_MS / 1000, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(POLL_MS / 1000)

    def _is_waiting(self, part: str) -> bool:
        """Reports whether its poll is in progress, so its known end is current."""
        poll = self._polls.get(part)
        if poll is None or not poll.done():
            return poll is not None
        del self._polls[part]
        with contextlib.suppress(MagnetarError, asyncio.CancelledError):  # It is asked again, and raises it then.
            self.tails[part] = poll.result()
        return False

    async def _ask(self, part: str, timeout_ms: int) -> Tail:
        known = self.tails.get(part)
        return await self._source.wait(part, EARLIEST if known is None else known.last_confirmed, timeout_ms)

    def _forget(self, part: str) -> None:
        self.tails.pop(part, None)
        poll = self._polls.pop(part, None)
        if poll is not None:
            poll.cancel()

    def close(self) -> None:
        for part in list(self.tails):
            self._forget(part)


# --- batches ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Limit:
    """Limits of a batch, or of one partition's share in it. None: without limit."""

    messages: int | None = None
    size_bytes: int | None = None

    @property
    def is_none(self) -> bool:
        return self.messages is None and self.size_bytes is None


def shares(waiting: Mapping[str, int], limit: Limit) -> dict[str, Limit]:
    """Divides by the number of messages that wait in each. A partition that is not named gets nothing this time."""
    messages: dict[str, int | None] = dict.fromkeys(waiting)
    if limit.messages is not None and sum(waiting.values()) > limit.messages:
        messages = {**_divided(waiting, limit.messages)}
    total = max(sum(waiting[part] for part in messages), 1)
    sizes = limit.size_bytes
    return {
        part: Limit(count, None if sizes is None else max(sizes * waiting[part] // total, 1))
        for part, count in messages.items()
    }


def _divided(waiting: Mapping[str, int], budget: int) -> dict[str, int]:
    """Divides a budget that is smaller than the waiting messages: in proportion, at least 1 for each, as long as it
    suffices. Partitions that lag most come first."""
    ordered = sorted(((count, part) for part, count in waiting.items() if count > 0), reverse=True)[:budget]
    left, waiting_left = budget, sum(count for count, _ in ordered)
    given: dict[str, int] = {}
    for place, (count, part) in enumerate(ordered):
        others = len(ordered) - place - 1
        given[part] = min(max(left * count // waiting_left, 1), left - others, count)
        left -= given[part]
        waiting_left -= count
    return given


class Follower:
    """Lives on the loop's thread, as long as the query runs."""

    def __init__(self, cluster: Cluster, admin: TopicAdmin, options: ReadOptions, cores: int) -> None:
        self._cluster = cluster
        self._admin = admin
        self._options = options
        self._cores = cores
        self._heads = Heads(cluster)
        self._parts: list[TopicPart] = []
        self._looked_at: float | None = None
        self._begin: Spots | None = None
        """The beginning of the query; None: not asked for."""
        self._target: Spots | None = None
        """The end of a query that stops at the present end."""
        self._shown: Spots = {}
        """The spots to which the subscription was moved: the end of a batch that is done."""
        self._kept: dict[str, int] = {}
        """Part → the ledger that its subscription is in."""

    async def initial(self) -> Offset:
        """Returns the beginning of a new query; its subscription holds everything from there on."""
        begin = await self.begin()
        if self._options.subscription:
            held = [partial(self._hold, part, spot) for part, spot in begin.items() if part not in self._shown]
            await gather_bounded(held, AT_ONCE_MAX)
        return Offset(begin)

    async def begin(self) -> Spots:
        """Returns the same at every call."""
        if self._begin is None:
            self._begin = await self._resolved()
            if self._target is not None:  # Later messages are not read, and an end never lies before its beginning.
                self._target |= {part: max(spot, self._target.get(part, spot)) for part, spot in self._begin.items()}
        return self._begin

    async def _resolved(self) -> Spots:
        await self._look_for_parts()
        names = {part.name: part.topic for part in self._parts}
        check_names(self._options.places.unknown_topics(names), self._options.subject)
        found = await gather_bounded([partial(self._initial_of, part) for part in self._parts], AT_ONCE_MAX)
        return dict(zip(names, found, strict=True))

    async def _initial_of(self, part: TopicPart) -> Spot:
        segments = await self._cluster.segments(part.name)
        bound = self._options.places.start
        begin = await start_spot(self._cluster, bound, part, segments, otherwise=LATEST, time=bound.time)
        self._tolerate(begin.trouble)
        return begin.spot

    async def _hold(self, part: str, spot: Spot) -> None:
        await self._admin.place_subscription(part, self._options.subscription, spot)
        self._shown[part], self._kept[part] = spot, spot.ledger_id

    async def latest(self, start: Offset, limit: Limit) -> Offset:
        """Returns the end of the next batch: `start` itself if nothing comes within half a second."""
        self._check_ours(start.spots)
        if self._is_initial(start):
            return Offset(await self._latest(start.spots, limit), begin=start.spots)
        await self.commit(start)  # Spark asks when the batch before is done; its own `commit` comes a batch later.
        latest = await self._latest(start.spots, limit)
        return start if latest is start.spots else Offset(latest)

    def _is_initial(self, start: Offset) -> bool:
        """Reports whether it is not the end of a batch: that of the first one carries its beginning."""
        return start.begin is None and start.spots == self._begin

    async def _latest(self, start: Spots, limit: Limit) -> Spots:
        ends = await self._patiently(lambda: self._ends(start))
        if ends == start and self._target is None:
            await self._heads.wait_news()
            ends = await self._patiently(lambda: self._ends(start))
        if ends == start:
            return start
        return ends if limit.is_none else await self._patiently(lambda: self._limited(start, ends, limit))

    async def available_now(self) -> None:
        """Ignores all later messages."""
        self._target = await self._patiently(self._tails)

    async def known(self) -> Offset | None:
        tails = self._known_tails()
        return Offset(tails) if tails else None

    async def plan(self, start: Offset, end: Offset) -> list[Split]:
        """Plans the entries between two offsets. The same offsets may come again after a restart."""
        self._check_ours(start.spots | end.spots)
        if start == end:
            self._begin = self._begin if end.begin is None else end.begin  # It is not looked up again.
            return []
        begin = end.begin if end.begin is not None and self._is_initial(start) else start.spots
        moved = {part: spot for part, spot in sorted(end.spots.items()) if begin.get(part) != spot}
        works = [partial(self._ranges_of, part, begin.get(part), spot) for part, spot in moved.items()]
        found = await self._patiently(lambda: gather_bounded(works, AT_ONCE_MAX))
        ranges = [each for ranges in found for each in ranges]
        return stream_splits(ranges, self._cores, self._options.partitions_min)

    async def _ranges_of(self, name: str, start: Spot | None, end: Spot) -> list[Range]:
        first_ledger = 0 if start is None else min(start.ledger_id, end.ledger_id)
        try:
            segments = await self._cluster.segments(name, first_ledger)
        except TopicNotFoundError:
            self._tolerate(deleted(name, start or end))
            return []
        self._tolerate(require_reached(end, segments))
        if start is None:
            spot = earliest_of(segments)
        else:
            begin = begin_at(start, segments)
            self._tolerate(begin.trouble)
            spot = begin.spot
        return ranges_between(segments, TopicPart(name).partition, spot, end)

    async def commit(self, end: Offset) -> None:
        """Moves the subscription, which shows the progress. Offsets do not depend on it, so it does not fail."""
        if not self._options.subscription:
            return
        for part, spot in sorted(end.spots.items()):
            if self._shown.get(part) != spot:
                await self._show(part, spot)

    async def _show(self, part: str, spot: Spot) -> None:
        name = self._options.subscription
        try:
            place = self._admin.move_subscription if part in self._shown else self._admin.place_subscription
            to = await self._first_needed(part, spot)
            await place(part, name, to)
            self._shown[part], self._kept[part] = spot, to.ledger_id
        except MagnetarError as error:
            self._shown.pop(part, None)  # It may be deleted: the next time it is made anew.
            log.warning("subscription %s of %s is not moved forward: %s", name, part, error)

    async def _first_needed(self, part: str, end: Spot) -> Spot:
        """Returns the first entry that the next batch may read: `end`, or chunks before it whose message ends after
        it."""
        kept = self._kept.get(part, 0)
        chunk = await first_open_chunk(self._cluster, self._options, part, end, kept)
        return end if chunk is None else Spot(*chunk)

    async def aclose(self) -> None:
        self._heads.close()

    async def _ends(self, start: Spots) -> Spots:
        """Returns `start`, with the ends of parts that have new messages; for new parts, their beginning."""
        ends = await self._tails() if self._target is None else self._target
        for part in sorted(start.keys() - ends.keys()):
            self._tolerate(deleted(part, start[part]))
        new = sorted(ends.keys() - start.keys())
        firsts = await gather_bounded([partial(self._first_of, part, ends[part]) for part in new], AT_ONCE_MAX)
        moved = {part: end for part, end in ends.items() if part in start and _is_new(start[part], end)}
        return {**start, **moved, **dict(zip(new, firsts, strict=True))}

    async def _tails(self) -> Spots:
        await self._look_for_parts()
        await self._heads.refresh([part.name for part in self._parts])
        return self._known_tails()

    def _known_tails(self) -> Spots:
        return {part: Spot.behind(tail.last_confirmed, tail.next_index) for part, tail in self._heads.tails.items()}

    async def _first_of(self, part: str, end: Spot) -> Spot:
        """Returns a spot not after the end, which may have been seen before something was trimmed."""
        return min(earliest_of(await self._cluster.segments(part)), end)

    async def _look_for_parts(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._looked_at is None or now >= self._looked_at + LOOK_S:
            self._parts = await find_parts(self._cluster, self._options.subject)
            self._looked_at = now

    async def _limited(self, start: Spots, ends: Spots, limit: Limit) -> Spots:
        """Limits the ends; parts that are new have nothing to read yet."""
        moved = {part: end for part, end in ends.items() if part in start and start[part] != end}
        limited = {part: start.get(part, end) for part, end in ends.items()}
        waiting = {part: _waiting(start[part], end) for part, end in moved.items()}
        for part, share in sorted(shares(waiting, limit).items()):
            limited[part] = await self._cut(part, start[part], moved[part], share)
        return limited

    async def _cut(self, part: str, begin: Spot, end: Spot, share: Limit) -> Spot:
        if share.is_none:
            return end
        limits = {"messages": share.messages, "size_bytes": share.size_bytes}
        at = await self._cluster.cut(part, begin.position, end.position, **limits)
        return end if at >= end.position else await spot_of(self._cluster, part, str(at))

    def _tolerate(self, trouble: DataLossError | None) -> None:
        tolerate(trouble, fail_on_data_loss=self._options.fail_on_data_loss)

    def _check_ours(self, spots: Spots) -> None:
        subject = self._options.subject
        foreign = [part for part in sorted(spots) if not is_meant(part, subject)]
        if foreign:
            raise CheckpointMismatchError(
                f"the checkpoint is of a query that read {', '.join(foreign[:3])}; this one reads {subject}. "
                "Give each query a checkpointLocation of its own, or begin anew with another one"
            )

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_S
        backoff = Backoff(SystemEntropy().random, longest_s=2.0)
        while True:
            try:
                return await ask()
            except MagnetarError as error:
                pause_s = backoff.next_s()
                if not error.retryable or loop.time() + pause_s > deadline:
                    raise
                log.warning("the query waits for its broker: %s", error)
            await asyncio.sleep(pause_s)


def _is_new(start: Spot, end: Spot) -> bool:
    """Reports whether there is something to read, or another topic of the name."""
    if UNKNOWN in (start.index, end.index):
        return start < end
    return start.index != end.index


def _waiting(begin: Spot, end: Spot) -> int:
    if UNKNOWN in (begin.index, end.index):
        return _UNKNOWN_WAITING
    return max(end.index - begin.index, 1)
