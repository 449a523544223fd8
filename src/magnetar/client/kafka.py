"""KafkaClient: asks the brokers of a cluster in Kafka's protocol about groups and offsets, for the command line.

    async with KafkaClient("localhost:9092") as client:
        group = await client.describe("billing")
        ends = await client.list_offsets({("orders", 0): END})

It works with brokers of Apache Kafka, too. Each request goes to the broker that can answer it: the coordinator of the
group, or the leader of the partition. It is sent in the newest version that both sides have.

Limits:    One request at a time on each connection, `_REQUEST_S` for each. An answer has at most `_ANSWER_BYTES_MAX`.
Failure:   BrokerUnavailableError if a broker cannot be reached, or has no coordinator or leader yet. KafkaRefusedError
           with the broker's code for what is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from magnetar.errors import ArgumentError, BrokerUnavailableError, KafkaRefusedError, RemoteProtocolError
from magnetar.wire.kafka.admin_tables import DELETE_GROUPS, DESCRIBE_GROUPS, LIST_GROUPS
from magnetar.wire.kafka.codec import Api, Reader, Value
from magnetar.wire.kafka.error_codes import ErrorCode
from magnetar.wire.kafka.frames import SIZE_BYTES, encode_request, read_answer_head
from magnetar.wire.kafka.group_tables import CONSUMER, FIND_COORDINATOR, MEMBER_DATA, OFFSET_COMMIT, OFFSET_FETCH
from magnetar.wire.kafka.tables import API_VERSIONS, LIST_OFFSETS, METADATA

END: Final = -1
START: Final = -2
"""Stand for a time: the next offset, and the first one."""
_REQUEST_S: Final = 30.0
_ANSWER_BYTES_MAX: Final = 64 * 2**20
_COORDINATOR_TRIES: Final = 10
_COORDINATOR_PAUSE_S: Final = 0.5
_ONE_KEY_MAX: Final = 3
_ONE_GROUP_MAX: Final = 7
_NOT_READY: Final = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
_DEAD: Final = "Dead"

Place = tuple[str, int]
"""A topic and the number of its partition."""


class Address(NamedTuple):
    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Raises ArgumentError."""
        host, _, port = text.strip().rpartition(":")
        if not host or not (port.isascii() and port.isdigit() and int(port) < 2**16):
            raise ArgumentError(f"{text!r} is not the address of a broker's port for Kafka clients: write HOST:PORT")
        return cls(host.strip("[]"), int(port))

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class GroupMember:
    member_id: str
    client_id: str
    host: str
    assigned: Sequence[Place]


@dataclass(frozen=True, slots=True)
class GroupState:
    state: str
    protocol_type: str
    members: Sequence[GroupMember]

    @property
    def exists(self) -> bool:
        return self.state != _DEAD


class _Connection:
    """Is made by `connect`, ended by `abort`."""

    def __init__(self, address: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._address = address
        self._reader = reader
        self._writer = writer
        self._requests = 0
        self._versions: Mapping[int, tuple[int, int]] = {}

    @classmethod
    async def connect(cls, address: Address) -> _Connection:
        try:
            async with asyncio.timeout(_REQUEST_S):
                connection = cls(address, *await asyncio.open_connection(address.host, address.port))
        except (OSError, TimeoutError) as error:
            why = getattr(error, "strerror", None) or str(error) or "no answer in time"
            raise BrokerUnavailableError(f"cannot connect to {address}: {why}") from error
        answer = await connection._exchange(API_VERSIONS, {}, 0)
        connection._versions = {
            each["api_key"]: (each["min_version"], each["max_version"]) for each in answer["api_keys"]
        }
        return connection

    def abort(self) -> None:
        self._writer.transport.abort()

    async def request(self, api: Api, value: Mapping[str, Any], version_max: int | None = None) -> Value:
        lowest, highest = self._versions.get(api.key, (0, -1))
        version = min(highest, api.version_max if version_max is None else version_max)
        if version < max(lowest, api.version_min):
            raise BrokerUnavailableError(f"broker {self._address} does not serve {api.name} in a version known here")
        return await self._exchange(api, value, version)

    async def _exchange(self, api: Api, value: Mapping[str, Any], version: int) -> Value:
        self._requests += 1
        body = api.encode_request(value, version)
        try:
            async with asyncio.timeout(_REQUEST_S):
                self._writer.writelines(encode_request(api, version, self._requests, "magnetar", body))
                await self._writer.drain()
                size = int.from_bytes(await self._reader.readexactly(SIZE_BYTES), "big", signed=True)
                if not 0 <= size <= _ANSWER_BYTES_MAX:
                    raise RemoteProtocolError(f"an answer of {size} bytes")
                reader = Reader(await self._reader.readexactly(size))
                if read_answer_head(reader, api, version) != self._requests:
                    raise RemoteProtocolError("an answer to another request")
                return api.decode_response(reader.data, version, reader.at)
        except (OSError, EOFError, TimeoutError, RemoteProtocolError) as error:
            self.abort()
            why = str(error) if isinstance(error, RemoteProtocolError) else "no answer"
            raise BrokerUnavailableError(
                f"{self._address} did not answer {api.name} as a broker for Kafka clients does: {why}"
            ) from error


class KafkaClient:
    def __init__(self, bootstrap: str) -> None:
        """`bootstrap` is HOST:PORT, or several of them separated by commas."""
        self._bootstrap = [Address.parse(each) for each in bootstrap.split(",")]
        self._connections: dict[Address, _Connection] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in self._connections.values():
            connection.abort()

    async def _at(self, address: Address) -> _Connection:
        found = self._connections.get(address)
        if found is None:
            found = self._connections[address] = await _Connection.connect(address)
        return found

    async def _any(self) -> _Connection:
        """Returns the first broker that can be reached."""
        for address in self._bootstrap[:-1]:
            try:
                return await self._at(address)
            except BrokerUnavailableError:
                continue
        return await self._at(self._bootstrap[-1])

    async def _metadata(self, topics: Iterable[str]) -> Value:
        named = [{"name": name} for name in topics]
        return await (await self._any()).request(METADATA, {"topics": named, "allow_auto_topic_creation": False})

    async def partitions(self, topic: str) -> list[Place]:
        """KafkaRefusedError if the topic does not exist."""
        (found,) = (await self._metadata([topic]))["topics"]
        if found["error_code"]:
            raise KafkaRefusedError(found["error_code"], f"topic {topic}: {_name_of(found['error_code'])}")
        return sorted((topic, each["partition_index"]) for each in found["partitions"])

    async def list_offsets(self, times: Mapping[Place, int]) -> dict[Place, int]:
        """Returns the first offset at each time or later, -1 without one. Partitions that do not exist are left out."""
        metadata = await self._metadata({topic for topic, _ in times})
        addresses = {each["node_id"]: Address(each["host"], each["port"]) for each in metadata["brokers"]}
        by_leader: dict[Address, list[Place]] = {}
        for topic in metadata["topics"]:
            for each in topic["partitions"]:
                place = (topic["name"], each["partition_index"])
                if place in times and each["leader_id"] in addresses:
                    by_leader.setdefault(addresses[each["leader_id"]], []).append(place)
        found: dict[Place, int] = {}
        for address, places in by_leader.items():
            found.update(await self._offsets_at(address, {place: times[place] for place in places}))
        return found

    async def _offsets_at(self, leader: Address, times: Mapping[Place, int]) -> dict[Place, int]:
        topics = [
            {
                "name": topic,
                "partitions": [
                    {"partition_index": index, "timestamp": times[topic, index]}
                    for name, index in times
                    if name == topic
                ],
            }
            for topic in sorted({topic for topic, _ in times})
        ]
        answer = await (await self._at(leader)).request(LIST_OFFSETS, {"replica_id": -1, "topics": topics})
        found = {}
        for topic in answer["topics"]:
            for each in topic["partitions"]:
                where = f"{topic['name']}-{each['partition_index']}"
                _require_done(each["error_code"], f"the offsets of {where}")
                found[topic["name"], each["partition_index"]] = each["offset"]
        return found

    # --- groups -------------------------------------------------------------------------------------------------------

    async def list_groups(self) -> list[dict[str, str]]:
        """Returns name, state and type of all groups. The state is empty where a broker does not say it."""
        found = []
        for each in (await self._metadata(()))["brokers"]:
            answer = await (await self._at(Address(each["host"], each["port"]))).request(LIST_GROUPS, {})
            _require_done(answer["error_code"], "the groups of a broker")
            found += [
                {"group": group["group_id"], "state": group["group_state"], "type": group["protocol_type"]}
                for group in answer["groups"]
            ]
        return sorted(found, key=lambda group: group["group"])

    async def describe(self, group: str) -> GroupState:
        answer = await (await self._coordinator(group)).request(DESCRIBE_GROUPS, {"groups": [group]})
        (found,) = answer["groups"]
        if found["error_code"] != ErrorCode.GROUP_ID_NOT_FOUND:
            _require_done(found["error_code"], f"group {group}")
        is_understood = found["protocol_type"] == CONSUMER
        members = [
            GroupMember(
                each["member_id"],
                each["client_id"],
                each["client_host"].lstrip("/"),
                _assigned(each["member_assignment"]) if is_understood else (),
            )
            for each in found["members"]
        ]
        return GroupState(found["group_state"], found["protocol_type"], members)

    async def committed(self, group: str) -> dict[Place, int]:
        """Returns all offsets that the group has committed."""
        coordinator = await self._coordinator(group)
        answer = await coordinator.request(OFFSET_FETCH, {"group_id": group, "topics": None}, _ONE_GROUP_MAX)
        _require_done(answer["error_code"], f"the offsets of group {group}")
        return {
            (topic["name"], each["partition_index"]): each["committed_offset"]
            for topic in answer["topics"]
            for each in topic["partitions"]
            if each["committed_offset"] >= 0
        }

    async def commit(self, group: str, offsets: Mapping[Place, int]) -> None:
        """For a group without members."""
        topics: dict[str, list[dict[str, Any]]] = {}
        for (topic, index), offset in offsets.items():
            committed = {"partition_index": index, "committed_offset": offset, "committed_metadata": ""}
            topics.setdefault(topic, []).append(committed)
        named = [{"name": topic, "partitions": partitions} for topic, partitions in topics.items()]
        answer = await (await self._coordinator(group)).request(OFFSET_COMMIT, {"group_id": group, "topics": named})
        for topic in answer["topics"]:
            for each in topic["partitions"]:
                where = f"{topic['name']}-{each['partition_index']}"
                _require_done(each["error_code"], f"the offset of group {group} for {where}")

    async def delete(self, group: str) -> None:
        answer = await (await self._coordinator(group)).request(DELETE_GROUPS, {"groups_names": [group]})
        _require_done(answer["results"][0]["error_code"], f"group {group}")

    async def _coordinator(self, group: str) -> _Connection:
        for _ in range(_COORDINATOR_TRIES):
            request = {"key": group, "key_type": 0}
            found = await (await self._any()).request(FIND_COORDINATOR, request, _ONE_KEY_MAX)
            if found["error_code"] not in _NOT_READY:
                _require_done(found["error_code"], f"the coordinator of group {group}")
                return await self._at(Address(found["host"], found["port"]))
            await asyncio.sleep(_COORDINATOR_PAUSE_S)
        raise BrokerUnavailableError(f"group {group} has no coordinator now: try again later")


def _assigned(data: bytes) -> Sequence[Place]:
    try:
        topics = MEMBER_DATA.decode_response(data, 0)["topics"] if data else ()
    except RemoteProtocolError:  # It is another protocol of the same name.
        return ()
    return [(topic["topic"], index) for topic in topics for index in topic["partitions"]]


def _require_done(code: int, what: str) -> None:
    if code:
        raise KafkaRefusedError(code, f"{what}: the broker answered {_name_of(code)}")


def _name_of(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"
