"""DescribeGroups, ListGroups, DeleteGroups and OffsetDelete, of the groups that this broker coordinates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from magnetar.broker.kafka.errors import group_code_of
from magnetar.broker.kafka.groups.group import Group, State
from magnetar.broker.kafka.session import Session
from magnetar.errors import KafkaRefusedError, MagnetarError, RemoteProtocolError
from magnetar.wire.kafka.codec import Value
from magnetar.wire.kafka.error_codes import ErrorCode
from magnetar.wire.kafka.frames import RequestHead
from magnetar.wire.kafka.group_tables import CONSUMER, MEMBER_DATA

_DEAD: Final = "Dead"
_CLASSIC: Final = "classic"
_NOT_FOUND_SINCE: Final = 6


async def handle_describe(session: Session, head: RequestHead, request: Value) -> Mapping[str, Any]:
    return {"groups": [await _described(session, name, head.version) for name in request["groups"]]}


async def _described(session: Session, name: str, version: int) -> dict[str, Any]:
    try:
        group = (await session.shared.coordinators.of(name)).group(name, create=False)
    except (MagnetarError, TimeoutError) as error:
        return {"group_id": name, "error_code": group_code_of(error)}
    if group is None:
        code = ErrorCode.GROUP_ID_NOT_FOUND if version >= _NOT_FOUND_SINCE else ErrorCode.NONE
        return {"group_id": name, "error_code": code, "group_state": _DEAD}
    return {
        "group_id": name,
        "group_state": group.state.value,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol or "",
        "members": _members(group),
    }


def _members(group: Group) -> list[dict[str, Any]]:
    return [
        {
            "member_id": member.member_id,
            "group_instance_id": member.instance_id,
            "client_id": member.client_id,
            "client_host": member.host,
            "member_metadata": member.subscription(group.protocol),
            "member_assignment": member.assignment if group.state is State.STABLE else b"",
        }
        for member in group.members.values()
    ]


async def handle_list(session: Session, head: RequestHead, request: Value) -> Mapping[str, Any]:
    del head
    states = {state.lower() for state in request["states_filter"]}
    types = {kind.lower() for kind in request["types_filter"]}
    try:
        groups = await session.shared.coordinators.all_groups()
    except (MagnetarError, TimeoutError) as error:
        return {"error_code": group_code_of(error), "groups": []}
    return {
        "groups": [
            {
                "group_id": group.name,
                "protocol_type": group.protocol_type,
                "group_state": group.state.value,
                "group_type": _CLASSIC,
            }
            for group in groups
            if (not states or group.state.value.lower() in states) and (not types or _CLASSIC in types)
        ]
    }


async def handle_delete(session: Session, head: RequestHead, request: Value) -> Mapping[str, Any]:
    del head
    return {"results": [await _deleted(session, name) for name in request["groups_names"]]}


async def _deleted(session: Session, name: str) -> dict[str, Any]:
    try:
        coordinator = await session.shared.coordinators.of(name)
        group = coordinator.group(name, create=False)
        if group is None:
            raise KafkaRefusedError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {name} does not exist")
        if group.members:
            raise KafkaRefusedError(ErrorCode.NON_EMPTY_GROUP, f"group {name} has members: end them first")
        await coordinator.delete(group)
    except (MagnetarError, TimeoutError) as error:
        return {"group_id": name, "error_code": group_code_of(error)}
    return {"group_id": name}


async def handle_delete_offsets(session: Session, head: RequestHead, request: Value) -> Mapping[str, Any]:
    """Offsets of a topic that a member subscribes to are not deleted."""
    del head
    try:
        coordinator = await session.shared.coordinators.of(request["group_id"])
        group = coordinator.group(request["group_id"], create=False)
        if group is None:
            raise KafkaRefusedError(
                ErrorCode.GROUP_ID_NOT_FOUND, f"group {request['group_id']} does not exist: list the groups"
            )
        subscribed = _subscribed(group)
        wanted = {
            (topic["name"], each["partition_index"]): topic["name"] in subscribed
            for topic in request["topics"]
            for each in topic["partitions"]
        }
        await coordinator.delete_offsets(group, [where for where, is_used in wanted.items() if not is_used])
    except (MagnetarError, TimeoutError) as error:
        return {"error_code": group_code_of(error), "topics": []}
    topics: dict[str, list[dict[str, int]]] = {}
    for (name, index), is_used in wanted.items():
        code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if is_used else ErrorCode.NONE
        topics.setdefault(name, []).append({"partition_index": index, "error_code": code})
    return {"topics": [{"name": name, "partitions": partitions} for name, partitions in topics.items()]}


def _subscribed(group: Group) -> set[str]:
    """Returns the topics of all members. KafkaRefusedError if members do not say them in the way of consumers."""
    found: set[str] = set()
    for member in group.members.values():
        try:
            if group.protocol_type != CONSUMER:
                raise RemoteProtocolError(f"{group.protocol_type} is not consumers' protocol")
            found.update(MEMBER_DATA.decode_request(member.subscription(group.protocol), 0)["topics"])
        except RemoteProtocolError as error:
            raise KafkaRefusedError(
                ErrorCode.NON_EMPTY_GROUP, f"group {group.name} has members: end them first ({error})"
            ) from None
    return found
