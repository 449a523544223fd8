"""The requests of consumer groups. Each finds the coordinator of its group, which must be this broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from magnetar.broker.kafka.errors import group_code_of
from magnetar.broker.kafka.groups.group import Committed, Group, Identity, Member, MemberIdRequiredError
from magnetar.broker.kafka.names import name_of, topic_of
from magnetar.broker.kafka.session import Session
from magnetar.errors import KafkaRefusedError, MagnetarError
from magnetar.wire.kafka.codec import Value
from magnetar.wire.kafka.error_codes import ErrorCode
from magnetar.wire.kafka.frames import RequestHead

_GROUP: Final = 0
_METADATA_BYTES_MAX: Final = 4_096
_MANY_SINCE: Final = 4
_REQUIRES_ID_SINCE: Final = 4
_SEVERAL_GROUPS_SINCE: Final = 8
_LEAVE_SEVERAL_SINCE: Final = 3
_REBALANCE_MS_MAX: Final = 600_000
_CLIENT_ID_MAX: Final = 249
_TEXT_MAX: Final = 249
_SUBSCRIPTION_BYTES_MAX: Final = 256 * 1024
_PROTOCOL_BYTES: Final = 100
"""What a protocol takes beside its name and metadata, about."""
_NO_OFFSET: Final = Committed(-1, -1, "", 0)
_FAILURES: Final = (MagnetarError, TimeoutError)

Answer = Mapping[str, Any]


async def handle_find_coordinator(session: Session, head: RequestHead, request: Value) -> Answer:
    if head.version < _MANY_SINCE:
        return await _found(session, request["key"], request["key_type"])
    keys = request["coordinator_keys"]
    return {"coordinators": [{"key": key, **await _found(session, key, request["key_type"])} for key in keys]}


async def _found(session: Session, key: str, key_type: int) -> dict[str, Any]:
    try:
        if key_type != _GROUP:
            raise KafkaRefusedError(
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "this broker has no transactions: produce without one"
            )
        broker_id = await session.shared.coordinators.locate(key)
        number, host, port = await session.shared.brokers.get(broker_id)
    except _FAILURES as error:
        failed = {"error_code": group_code_of(error), "error_message": str(error)}
        return {**failed, "node_id": -1, "host": "", "port": -1}
    return {"node_id": number, "host": host, "port": port}


# --- members ----------------------------------------------------------------------------------------------------------


async def handle_join(session: Session, head: RequestHead, request: Value) -> Answer:
    config, session_ms = session.config, request["session_timeout_ms"]
    try:
        if not config.group_session_timeout_ms_min <= session_ms <= config.group_session_timeout_ms_max:
            raise KafkaRefusedError(
                ErrorCode.INVALID_SESSION_TIMEOUT, f"a session timeout of {session_ms} ms is not accepted here"
            )
        _require_small(request)
        group = await _group(session, request["group_id"])
        return await group.join(
            _joining(session, head, request),
            request["protocol_type"],
            needs_id=head.version >= _REQUIRES_ID_SINCE,
        )
    except _FAILURES as error:
        code = group_code_of(error)
        member_id = error.member_id if isinstance(error, MemberIdRequiredError) else request["member_id"]
        return {"error_code": code, "member_id": member_id, "protocol_name": ""}


def _require_small(request: Value) -> None:
    """Refuses a member that would take much memory, or that its group's record has no room for."""
    texts = (
        request["group_instance_id"] or "",
        request["protocol_type"],
        *(each["name"] for each in request["protocols"]),
    )
    size = sum(len(each["name"]) + len(each["metadata"]) + _PROTOCOL_BYTES for each in request["protocols"])
    if max(map(len, texts)) > _TEXT_MAX or size > _SUBSCRIPTION_BYTES_MAX:
        raise KafkaRefusedError(
            ErrorCode.INVALID_REQUEST,
            f"a member's instance id and protocol names have up to {_TEXT_MAX} characters, and its subscription "
            f"{_SUBSCRIPTION_BYTES_MAX} bytes",
        )


def _joining(session: Session, head: RequestHead, request: Value) -> Member:
    session_ms, rebalance_ms = request["session_timeout_ms"], request["rebalance_timeout_ms"]
    return Member(
        request["member_id"],
        request["group_instance_id"],
        (head.client_id or "")[:_CLIENT_ID_MAX],
        "/" + session.peer.rpartition(":")[0],
        session_ms / 1000,
        min(_REBALANCE_MS_MAX, rebalance_ms if rebalance_ms >= 0 else session_ms) / 1000,
        [(each["name"], each["metadata"]) for each in request["protocols"]],
    )


async def handle_sync(session: Session, head: RequestHead, request: Value) -> Answer:
    del head
    assignments = {each["member_id"]: each["assignment"] for each in request["assignments"]}
    try:
        group = await _known_group(session, request["group_id"])
        assignment = await group.sync(_identity(request), request["generation_id"], assignments)
    except _FAILURES as error:
        return {"error_code": group_code_of(error)}
    return {"assignment": assignment, "protocol_type": group.protocol_type, "protocol_name": group.protocol}


async def handle_heartbeat(session: Session, head: RequestHead, request: Value) -> Answer:
    del head
    try:
        group = await _known_group(session, request["group_id"])
        group.heartbeat(_identity(request), request["generation_id"])
    except _FAILURES as error:
        return {"error_code": group_code_of(error)}
    return {}


async def handle_leave(session: Session, head: RequestHead, request: Value) -> Answer:
    is_one = head.version < _LEAVE_SEVERAL_SINCE
    leaving = [{"member_id": request["member_id"], "group_instance_id": None}] if is_one else request["members"]
    try:
        group = await _known_group(session, request["group_id"])
    except _FAILURES as error:
        return {"error_code": group_code_of(error)}
    left = [_left(group, each) for each in leaving]
    return {"error_code": left[0]["error_code"]} if is_one else {"members": left}


def _left(group: Group, leaving: Value) -> dict[str, Any]:
    named = {"member_id": leaving["member_id"], "group_instance_id": leaving["group_instance_id"]}
    try:
        group.leave(_identity(leaving))
    except KafkaRefusedError as error:
        return {**named, "error_code": error.code}
    return {**named, "error_code": ErrorCode.NONE}


async def _group(session: Session, name: str) -> Group:
    group = (await session.shared.coordinators.of(name)).group(name, create=True)
    assert group is not None
    return group


async def _known_group(session: Session, name: str) -> Group:
    group = (await session.shared.coordinators.of(name)).group(name, create=False)
    if group is None:
        raise KafkaRefusedError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {name} has no members")
    return group


def _identity(request: Value) -> Identity:
    return Identity(request["member_id"], request["group_instance_id"])


# --- offsets ----------------------------------------------------------------------------------------------------------


async def handle_commit(session: Session, head: RequestHead, request: Value) -> Answer:
    del head
    try:
        coordinator = await session.shared.coordinators.of(request["group_id"])
        generation = request["generation_id_or_member_epoch"]
        group = coordinator.group(request["group_id"], create=generation < 0)
        if group is None:
            raise KafkaRefusedError(ErrorCode.ILLEGAL_GENERATION, "the group is not known: join it again")
        group.require_may_commit(_identity(request), generation)
        accepted, refused = _sorted_out(session, request["topics"])
        await coordinator.commit(group, accepted)
    except _FAILURES as error:
        code = group_code_of(error)
        return _committed(request["topics"], {}, code)
    return _committed(request["topics"], refused, ErrorCode.NONE)


def _sorted_out(
    session: Session, topics: Sequence[Value]
) -> tuple[dict[tuple[str, int], Committed], dict[tuple[str, int], int]]:
    """Returns the offsets to commit, under the names that topics have for all clients, and the errors of the others,
    under the names of the request."""
    accepted, refused = {}, {}
    now_ms = session.service.entropy.wall_ms()
    for topic in topics:
        for each in topic["partitions"]:
            where, metadata = (topic["name"], each["partition_index"]), each["committed_metadata"] or ""
            try:
                name = _canonical(session, topic["name"])
                if len(metadata.encode()) > _METADATA_BYTES_MAX:
                    raise KafkaRefusedError(
                        ErrorCode.OFFSET_METADATA_TOO_LARGE, "the metadata of an offset is too long"
                    )
            except KafkaRefusedError as error:
                refused[where] = error.code
                continue
            committed = Committed(each["committed_offset"], each["committed_leader_epoch"], metadata, now_ms)
            accepted[name, each["partition_index"]] = committed
    return accepted, refused


def _canonical(session: Session, name: str) -> str:
    namespace = session.shared.namespace
    return name_of(topic_of(name, namespace), namespace)


def _committed(topics: Sequence[Value], refused: Mapping[tuple[str, int], int], code: int) -> Answer:
    return {
        "topics": [
            {
                "name": topic["name"],
                "partitions": [
                    {
                        "partition_index": each["partition_index"],
                        "error_code": refused.get((topic["name"], each["partition_index"]), code),
                    }
                    for each in topic["partitions"]
                ],
            }
            for topic in topics
        ]
    }


async def handle_fetch(session: Session, head: RequestHead, request: Value) -> Answer:
    if head.version < _SEVERAL_GROUPS_SINCE:
        return await _offsets(session, request["group_id"], request["topics"])
    groups = request["groups"]
    return {
        "groups": [
            {"group_id": each["group_id"], **await _offsets(session, each["group_id"], each["topics"])}
            for each in groups
        ]
    }


async def _offsets(session: Session, name: str, topics: Sequence[Value] | None) -> dict[str, Any]:
    """`topics`: None for all that the group has committed."""
    try:
        group = (await session.shared.coordinators.of(name)).group(name, create=False)
    except _FAILURES as error:
        return {"error_code": group_code_of(error), "topics": []}
    offsets = {} if group is None else group.offsets
    if topics is None:
        wanted: dict[str, list[int]] = {}
        for topic, number in offsets:
            wanted.setdefault(topic, []).append(number)
        topics = [{"name": topic, "partition_indexes": numbers} for topic, numbers in wanted.items()]
    return {"topics": [_offsets_of(session, offsets, topic) for topic in topics]}


def _offsets_of(session: Session, offsets: Mapping[tuple[str, int], Committed], topic: Value) -> Answer:
    try:
        name = _canonical(session, topic["name"])
    except KafkaRefusedError:  # Nothing can be committed for it.
        name = topic["name"]
    partitions = []
    for number in topic["partition_indexes"]:
        offset, epoch, metadata, _ = offsets.get((name, number), _NO_OFFSET)
        partitions.append(
            {
                "partition_index": number,
                "committed_offset": offset,
                "committed_leader_epoch": epoch,
                "metadata": metadata,
            }
        )
    return {"name": topic["name"], "partitions": partitions}
