"""Coordinator: the groups of one partition of `__consumer_offsets`, whose owner coordinates them.

The log has the state. Each change is a record of Kafka's own form in it, and is answered when it is durable. The
partition's fencing is the coordinator's: a broker that lost the partition can append nothing, so it confirms nothing.

Order:     A change takes effect in memory when it is durable. All offsets of one request are one entry: all or none.
Format:    public/__kafka/__consumer_offsets, a partitioned topic whose number of partitions never changes. A group's
           partition is `abs(java_hash(group)) % partitions`. Property `kafka.snapshot` of a partition is the position
           from which on its log has everything.
           Offsets that were not used for `offsets_retention_minutes` are deleted: those of a group without members, by
           the time at which the last one left and that of the commit, whichever is later.
Limits:    Groups of a partition. After `_SNAPSHOT_RECORDS` records, everything that counts is written again, and what
           is before that is trimmed.
Failure:   When the partition is unloaded, all that wait get NOT_COORDINATOR, and ask which broker is the next one.
Read next: group.py; broker/kafka/partition.py
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from typing import Any, Final

from magnetar.broker.kafka.groups.group import Committed, Group, Member, Settings, State
from magnetar.broker.kafka.partition import LEADER_EPOCH, Partition
from magnetar.broker.publishing.producers import Producer, ProducerOptions, Publish
from magnetar.broker.service import BrokerService
from magnetar.config.kafka import KafkaConfig
from magnetar.errors import KafkaRefusedError, MagnetarError, ServiceNotReadyError
from magnetar.runtime.uncancelled import UncancelledTasks
from magnetar.topic.entry_format import kafka
from magnetar.topic.position import EARLIEST, Position
from magnetar.wire.kafka.batches import Record, encode_batch, records_of
from magnetar.wire.kafka.codec import Value
from magnetar.wire.kafka.error_codes import ErrorCode
from magnetar.wire.kafka.group_tables import GROUP_RECORD, OFFSET_RECORD

log = logging.getLogger(__name__)

GROUPS_MAX: Final = 10_000
_SNAPSHOT_PROPERTY: Final = "kafka.snapshot"
_SNAPSHOT_RECORDS: Final = 10_000
_BATCH_RECORDS: Final = 500
_BATCH_BYTES: Final = 2**20
_READ_ENTRIES: Final = 1_000
_READ_BYTES: Final = 4 * 2**20
_RECORDS_BYTES_MAX: Final = 16 * 2**20
_OFFSET_VERSION: Final = 1
_GROUP_VERSION: Final = 2
_VALUE_VERSION: Final = 3
_APPEND_S: Final = 30.0
_EXPIRE_EVERY_S: Final = 600.0


def not_coordinator() -> KafkaRefusedError:
    return KafkaRefusedError(ErrorCode.NOT_COORDINATOR, "another broker coordinates the group: ask which one")


class Coordinator:
    """Is made for a partition that is served here; usable after `load`, ended by `close`."""

    def __init__(self, partition: Partition, service: BrokerService, config: KafkaConfig) -> None:
        self.partition = partition
        self.groups: dict[str, Group] = {}
        self._entropy = service.entropy
        self._slices = service.slices
        self._tasks = UncancelledTasks(not_coordinator)
        self._settings = Settings(
            config.group_initial_rebalance_delay_ms / 1000, self._new_id, self.save_group, self._run
        )
        self._producer = Producer(ProducerOptions(producer_id=0, name=service.new_producer_name()), self)
        self._pending: deque[asyncio.Future[Position]] = deque()
        self._loading: asyncio.Task[None] | None = None
        self._is_loaded = False
        self._expiring: asyncio.TimerHandle | None = None
        self._retention_ms = config.offsets_retention_minutes * 60_000
        self._is_snapshotting = False
        self._records = 0
        """Those that were appended since the last snapshot, or that had to be read."""
        self._loop = asyncio.get_running_loop()

    def _new_id(self) -> str:
        return f"{self._entropy.random.getrandbits(128):032x}"

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._tasks.begin(work, name="kafka-group")
        task.add_done_callback(_log_failure)

    def group(self, name: str, *, create: bool) -> Group | None:
        found = self.groups.get(name)
        if found is None and create:
            if len(self.groups) >= GROUPS_MAX:
                self._forget_unused()
            if len(self.groups) >= GROUPS_MAX:
                raise KafkaRefusedError(
                    ErrorCode.COORDINATOR_NOT_AVAILABLE, f"this partition has {GROUPS_MAX} groups, which is the limit"
                )
            found = self.groups[name] = Group(name, self._settings)
        return found

    def _forget_unused(self) -> None:
        """Removes groups that were only tried: nothing of them is stored."""
        for group in [each for each in self.groups.values() if each.is_unused]:
            del self.groups[group.name]

    def close(self) -> None:
        self.partition.unwatch(self._on_tail)
        if self._expiring is not None:
            self._expiring.cancel()
            self._expiring = None
        if self._loading is not None:
            self._loading.cancel()
        for group in self.groups.values():
            group.close(not_coordinator())
        self.groups.clear()

    # --- loading ------------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Returns when all groups of the partition are known. Called by every request; the log is read once."""
        if self._is_loaded:
            return
        if self._loading is None:
            self._loading = self._loop.create_task(self._load(), name="load Kafka groups")
        loading = self._loading
        try:
            await asyncio.wait([loading])
        finally:
            if loading.done() and self._loading is loading:
                self._loading = None
        if loading.cancelled():  # By `close`. The request itself was not cancelled, and needs an answer.
            raise not_coordinator()
        loading.result()

    async def _load(self) -> None:
        self.groups.clear()
        self._records = 0
        chain = self.partition.log.chain
        position = chain.at_or_after(_parsed(self.partition.log.properties.get(_SNAPSHOT_PROPERTY)))
        while chain.contains(position):
            for entry in await self.partition.log.read(position, _READ_ENTRIES, _READ_BYTES):
                await self._slices.turn()
                self._replay(entry.data)
                position = entry.position
            position = chain.next_position(position)
        for group in self.groups.values():
            group.resume()
        self.partition.watch(self._on_tail)
        self._is_loaded = True
        self._expire_later()

    def _on_tail(self) -> None:
        """Is called when the partition is closed, and after each append, which needs nothing."""
        if self.partition.is_closed:
            self.close()

    def _replay(self, data: Any) -> None:
        if not kafka.is_kafka(data):
            return
        batch = kafka.batch_of(data)
        try:
            for record in records_of(batch, kafka.head_of(batch), _RECORDS_BYTES_MAX):
                self._apply(record)
                self._records += 1
        except MagnetarError as error:
            log.warning("a record of Kafka's groups cannot be read", extra={"why": str(error)})

    def _apply(self, record: Record) -> None:
        if record.key is None:  # Another client has written it.
            return
        version = int.from_bytes(record.key[:2], "big")
        if version == _GROUP_VERSION:
            self._apply_group(GROUP_RECORD.decode_request(record.key, 0)["group"], record.value)
        elif version <= _OFFSET_VERSION:
            self._apply_offset(OFFSET_RECORD.decode_request(record.key, 0), record.value)

    def _apply_group(self, name: str, value: bytes | None) -> None:
        if value is None:
            self.groups.pop(name, None)
            return
        group = self.group(name, create=True)
        assert group is not None
        fields = GROUP_RECORD.decode_response(value, 0)
        group.restore(fields, [_member_of(each, fields["protocol"]) for each in fields["members"]])
        group.empty_since_ms = None if group.members else fields["current_state_timestamp"]

    def _apply_offset(self, key: Value, value: bytes | None) -> None:
        group = self.group(key["group"], create=True)
        assert group is not None
        where = key["topic"], key["partition"]
        if value is None:
            group.offsets.pop(where, None)
            return
        fields = OFFSET_RECORD.decode_response(value, 0)
        group.offsets[where] = Committed(
            fields["offset"], fields["leader_epoch"], fields["metadata"], fields["commit_timestamp"]
        )

    # --- storing ------------------------------------------------------------------------------------------------------

    async def save_group(self, group: Group) -> None:
        await self._append([self._group_record(group)])

    async def commit(self, group: Group, offsets: Mapping[tuple[str, int], Committed]) -> None:
        """Returns when they are durable; then they are the group's."""
        await self._append([self._offset_record(group.name, where, offsets[where]) for where in offsets])
        kept = self.groups.setdefault(group.name, group)  # It may have been deleted before this was appended.
        kept.offsets.update(offsets)

    async def delete_offsets(self, group: Group, places: Sequence[tuple[str, int]]) -> None:
        """Deletes committed offsets, of those places that have one."""
        found = {where: group.offsets[where] for where in places if where in group.offsets}
        await self._append([_deletion(self._offset_record(group.name, where, found[where])) for where in found])
        for where in found:  # In the order of the log: what was committed later is applied later.
            group.offsets.pop(where, None)

    async def expire(self) -> None:
        """Deletes the offsets that no client has used for the retention of offsets, and groups without any."""
        before_ms = self._entropy.wall_ms() - self._retention_ms
        self._forget_unused()
        for group in list(self.groups.values()):
            if group.members or self._pending:  # A commit may be among what is pending: the next round looks again.
                continue
            since_ms = group.empty_since_ms or 0
            if since_ms > before_ms:
                continue
            old = [where for where, each in group.offsets.items() if each.commit_ms <= before_ms]
            if len(old) < len(group.offsets):
                await self.delete_offsets(group, old)
            elif old or since_ms:
                log.info("an unused group of Kafka is deleted", extra={"group": group.name})
                await self.delete(group)

    def _expire_later(self) -> None:
        self._expiring = self._loop.call_later(_EXPIRE_EVERY_S, self._on_expiry)

    def _on_expiry(self) -> None:
        self._run(self.expire())
        self._expire_later()

    async def delete(self, group: Group) -> None:
        """Deletes a group without members, with its offsets."""
        deleted = list(group.offsets)
        await self._append(
            [
                *(_deletion(self._offset_record(group.name, where, each)) for where, each in group.offsets.items()),
                _deletion(self._group_record(group)),
            ]
        )
        for where in deleted:
            group.offsets.pop(where, None)
        if self.groups.get(group.name) is group and not group.members:
            group.close(not_coordinator())
            del self.groups[group.name]

    def _group_record(self, group: Group, members: Mapping[str, Member] | None = None) -> Record:
        """`members`: all of the group's if none are given."""
        now_ms = self._entropy.wall_ms()
        if group.members:
            group.empty_since_ms = None
        elif group.empty_since_ms is None:
            group.empty_since_ms = now_ms
        value = {
            "version": _VALUE_VERSION,
            "protocol_type": group.protocol_type,
            "generation": group.generation,
            "protocol": group.protocol,
            "leader": group.leader,
            "current_state_timestamp": now_ms if group.empty_since_ms is None else group.empty_since_ms,
            "members": [
                _member_fields(member, group.protocol)
                for member in (group.members if members is None else members).values()
            ],
        }
        key = GROUP_RECORD.encode_request({"version": _GROUP_VERSION, "group": group.name}, 0)
        return Record(0, now_ms, b"".join(key), b"".join(GROUP_RECORD.encode_response(value, 0)))

    def _offset_record(self, group: str, where: tuple[str, int], committed: Committed) -> Record:
        topic, number = where
        key = {"version": _OFFSET_VERSION, "group": group, "topic": topic, "partition": number}
        value = {
            "version": _VALUE_VERSION,
            "offset": committed.offset,
            "leader_epoch": committed.leader_epoch,
            "metadata": committed.metadata,
            "commit_timestamp": committed.commit_ms,
        }
        encoded = b"".join(OFFSET_RECORD.encode_request(key, 0)), b"".join(OFFSET_RECORD.encode_response(value, 0))
        return Record(0, committed.commit_ms, *encoded)

    async def _append(self, records: Sequence[Record]) -> Position:
        """Returns the position of the entry when it is durable."""
        if not records:
            return EARLIEST
        appended = self._submit(records)
        async with asyncio.timeout(_APPEND_S):
            position = await appended
        self._records += len(records)
        if self._records >= max(_SNAPSHOT_RECORDS, 2 * self._live) and not self._pending and not self._is_snapshotting:
            self._is_snapshotting = True
            self._run(self._snapshot())
        return position

    def _submit(self, records: Sequence[Record]) -> asyncio.Future[Position]:
        if self.partition.is_closed:
            raise not_coordinator()
        numbered = [record._replace(offset_delta=delta) for delta, record in enumerate(records)]
        batch = encode_batch(numbered)
        topic_log, publisher = self.partition.log, self.partition.topic.publisher
        parts = kafka.body_parts(batch, topic_log.next_index, LEADER_EPOCH, self._entropy.wall_ms())
        try:
            publisher.publish_parts((self._producer, -1, -1, len(records), len(batch), self._loop.time()), parts)
        except ServiceNotReadyError as error:
            raise not_coordinator() from error
        appended: asyncio.Future[Position] = self._loop.create_future()
        self._pending.append(appended)
        return appended

    @property
    def _live(self) -> int:
        return sum(1 + len(group.offsets) for group in self.groups.values())

    async def _snapshot(self) -> None:
        """Writes everything again, notes where that begins, and trims what is before it.

        It begins in a turn in which nothing is pending, so whatever it does not contain is after its beginning.
        """
        try:
            if self._pending:
                return
            self._records = 0
            appended = [self._submit(records) for records in _in_batches(list(self._everything()))]
            positions = [await each for each in appended]
            if positions:
                first = positions[0]
                await self.partition.topic.set_property(_SNAPSHOT_PROPERTY, f"{first.ledger_id}:{first.entry_id}")
                await self.partition.log.trim(self.partition.log.chain.previous_position(first))
        finally:
            self._is_snapshotting = False

    def _everything(self) -> Iterator[Record]:
        """A group that is between two generations is written without members, so that they join again: assignments
        of the generation before do not fit the members of the next one."""
        for group in self.groups.values():
            yield self._group_record(group, group.members if group.state is State.STABLE else {})
            for where, committed in group.offsets.items():
                yield self._offset_record(group.name, where, committed)

    # --- the sink of its producer -------------------------------------------------------------------------------------

    def published(
        self, producer: Producer, ledger_id: int, first_entry_id: int, run: Sequence[Publish], size: int
    ) -> None:
        del producer, size
        for number in range(len(run)):
            appended = self._pending.popleft()
            if not appended.done():
                appended.set_result(Position(ledger_id, first_entry_id + number))

    def publish_failed(self, producer: Producer, run: Sequence[Publish], error: MagnetarError) -> None:
        del producer, error
        for _ in run:
            appended = self._pending.popleft()
            if not appended.done():
                appended.set_exception(not_coordinator())

    def hold(self, reason: str) -> None:
        """Does nothing: each request waits for its own append."""

    def let_go(self, reason: str) -> None:
        """Does nothing, as `hold`."""

    async def check_alive(self) -> bool:
        return True

    def close_producer(self, producer: Producer) -> None:
        """Does nothing: it is not among the topic's producers."""


def _in_batches(records: Sequence[Record]) -> Iterator[Sequence[Record]]:
    """Splits records so that each batch fits into an entry."""
    batch: list[Record] = []
    size = 0
    for record in records:
        more = len(record.key or b"") + len(record.value or b"")
        if batch and (len(batch) >= _BATCH_RECORDS or size + more > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += more
    if batch:
        yield batch


def _deletion(record: Record) -> Record:
    return record._replace(value=None)


def _log_failure(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("the state of Kafka's groups was not stored", extra={"why": str(error)})


def _parsed(text: str | None) -> Position:
    if text is None:
        return EARLIEST
    ledger_id, _, entry_id = text.partition(":")
    return Position(int(ledger_id), int(entry_id))


def _member_of(fields: Value, protocol: str | None) -> Member:
    return Member(
        fields["member_id"],
        fields["group_instance_id"],
        fields["client_id"],
        fields["client_host"],
        fields["session_timeout"] / 1000,
        fields["rebalance_timeout"] / 1000,
        [(protocol or "", fields["subscription"])],
        fields["assignment"],
    )


def _member_fields(member: Member, protocol: str | None) -> Value:
    return {
        "member_id": member.member_id,
        "group_instance_id": member.instance_id,
        "client_id": member.client_id,
        "client_host": member.host,
        "rebalance_timeout": round(member.rebalance_s * 1000),
        "session_timeout": round(member.session_s * 1000),
        "subscription": member.subscription(protocol),
        "assignment": member.assignment,
    }
