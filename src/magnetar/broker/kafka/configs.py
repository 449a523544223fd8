"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs.

`retention.ms` and `retention.bytes` of a topic are its policy of retention. The other configurations that are described
say what is done here, and cannot be changed: setting one to the value that it has changes nothing, and any other value
is refused by its name. So is every configuration that is not described. Those of brokers are in their own
configuration.

Order:     All configurations of a topic in one request are one change, or none.
Read next: retention.py
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from magnetar.broker.kafka.names import topic_of
from magnetar.broker.kafka.retention import (
    CONFIGS,
    DELETE_POLICY,
    bytes_of,
    milliseconds_of,
    retention_of,
    with_retention,
)
from magnetar.broker.kafka.session import Session, refusal_of
from magnetar.errors import KafkaRefusedError, MagnetarError, TopicNotFoundError
from magnetar.names import TopicName
from magnetar.wire.kafka.codec import Value
from magnetar.wire.kafka.error_codes import ErrorCode
from magnetar.wire.kafka.frames import RequestHead

_TOPIC: Final = 2
_BROKER: Final = 4
_SET: Final = 0
_REMOVE: Final = 1
_OF_TOPIC: Final = 1
_OF_BROKER: Final = 4
_DEFAULT: Final = 5
_RETENTION: Final = "retentionPolicies"


class _Config(NamedTuple):
    value: str
    source: int = _OF_BROKER
    is_read_only: bool = True


async def handle_describe(session: Session, head: RequestHead, request: Value) -> Mapping[str, Any]:
    del head
    return {"results": [await _described(session, each) for each in request["resources"]]}


async def _described(session: Session, resource: Value) -> dict[str, Any]:
    named = {"resource_type": resource["resource_type"], "resource_name": resource["resource_name"]}
    try:
        configs = await _configs(session, resource)
    except (MagnetarError, TimeoutError) as error:
        code, why = refusal_of(error)
        return {**named, "error_code": code, "error_message": why, "configs": []}
    wanted = resource["configuration_keys"]
    return {
        **named,
        "configs": [
            {
                "name": name,
                "value": each.value,
                "read_only": each.is_read_only,
                "config_source": each.source,
                "synonyms": [{"name": name, "value": each.value, "source": each.source}],
            }
            for name, each in configs.items()
            if wanted is None or name in wanted
        ],
    }


async def _configs(session: Session, resource: Value) -> dict[str, _Config]:
    kind, name = resource["resource_type"], resource["resource_name"]
    if kind == _TOPIC:
        return await _of_topic(session, await _existing(session, name))
    if kind == _BROKER:
        await _require_this_broker(session, name)
        return _of_broker(session) if name else {}
    raise _invalid(f"configurations of resources of type {kind} do not exist here: ask for topics (2) or brokers (4)")


async def _existing(session: Session, name: str) -> TopicName:
    service, topic = session.service, topic_of(name, session.shared.namespace)
    await service.require_namespace(topic.namespace)
    if await service.resources.partitioned_topics.get_fresh(topic) is None and not await service.exists(topic):
        raise TopicNotFoundError(f"topic {name} does not exist")
    return topic


async def _require_this_broker(session: Session, name: str) -> None:
    here = (await session.shared.brokers.get(session.service.address.broker_id)).number
    if name not in ("", str(here)):
        raise _invalid(f"this is broker {here}: ask broker {name} for its configurations")


async def _of_topic(session: Session, topic: TopicName) -> dict[str, _Config]:
    policies = session.service.policies
    await policies.load(topic)
    retention = policies.effective(topic).retention
    is_own = (policies.topic_policies(topic) or {}).get(_RETENTION) is not None
    source = _OF_TOPIC if is_own else _DEFAULT
    milliseconds, size = CONFIGS
    return {
        milliseconds: _Config(str(milliseconds_of(retention.minutes)), source, is_read_only=False),
        size: _Config(str(bytes_of(retention.megabytes)), source, is_read_only=False),
        **_fixed(session),
    }


def _fixed(session: Session) -> dict[str, _Config]:
    """Returns what is the same for all topics."""
    config = session.config
    return {
        "cleanup.policy": _Config(DELETE_POLICY, _DEFAULT),
        "compression.type": _Config("producer", _DEFAULT),
        "max.message.bytes": _Config(str(config.message_bytes_max)),
        "message.timestamp.type": _Config("CreateTime", _DEFAULT),
        "message.timestamp.after.max.ms": _Config(str(config.timestamp_after_max_ms)),
    }


def _of_broker(session: Session) -> dict[str, _Config]:
    config = session.config
    found = {
        "group.initial.rebalance.delay.ms": config.group_initial_rebalance_delay_ms,
        "group.max.session.timeout.ms": config.group_session_timeout_ms_max,
        "group.min.session.timeout.ms": config.group_session_timeout_ms_min,
        "log.retention.minutes": config.retention_minutes,
        "message.max.bytes": config.message_bytes_max,
        "offsets.retention.minutes": config.offsets_retention_minutes,
        "offsets.topic.num.partitions": config.offsets_partitions,
        "socket.request.max.bytes": config.request_bytes_max,
    }
    return {name: _Config(str(value)) for name, value in found.items()}


# --- changing ---------------------------------------------------------------------------------------------------------

_Change = Callable[[dict[str, str | None]], dict[str, str | None]]
"""Maps the configurations that a topic has of its own to those that it shall have."""


async def handle_alter(session: Session, head: RequestHead, request: Value) -> Mapping[str, Any]:
    """What a request does not name is as if it had never been set."""
    del head
    changes = [(each, partial(_replaced, each["configs"])) for each in request["resources"]]
    return await _altered(session, changes, is_only_checked=request["validate_only"])


async def handle_alter_incrementally(session: Session, head: RequestHead, request: Value) -> Mapping[str, Any]:
    del head
    changes = [(each, partial(_changed, each["configs"])) for each in request["resources"]]
    return await _altered(session, changes, is_only_checked=request["validate_only"])


def _replaced(configs: Sequence[Value], before: dict[str, str | None]) -> dict[str, str | None]:
    del before
    return {each["name"]: each["value"] for each in configs}


def _changed(configs: Sequence[Value], before: dict[str, str | None]) -> dict[str, str | None]:
    after = dict(before)
    for each in configs:
        if each["config_operation"] == _REMOVE:
            after.pop(each["name"], None)
        elif each["config_operation"] == _SET:
            after[each["name"]] = each["value"]
        else:
            raise _refused(f"{each['name']} is no list that could be changed here: set it, or remove it")
    return after


async def _altered(
    session: Session, changes: Sequence[tuple[Value, _Change]], *, is_only_checked: bool
) -> Mapping[str, Any]:
    responses = []
    for resource, change in changes:
        code, why = int(ErrorCode.NONE), None
        try:
            await _alter(session, resource, change, is_only_checked=is_only_checked)
        except (MagnetarError, TimeoutError) as error:
            code, why = refusal_of(error)
        named = {"resource_type": resource["resource_type"], "resource_name": resource["resource_name"]}
        responses.append({**named, "error_code": code, "error_message": why})
    return {"responses": responses}


async def _alter(session: Session, resource: Value, change: _Change, *, is_only_checked: bool) -> None:
    if resource["resource_type"] != _TOPIC:
        raise _refused("only configurations of topics can be changed: set others in the configuration of the brokers")
    topic = await _existing(session, resource["resource_name"])
    found = await _of_topic(session, topic)
    after = change({name: each.value for name, each in found.items() if each.source == _OF_TOPIC})
    own = {name: value for name, value in after.items() if name in CONFIGS}
    for name, value in after.items():
        if name not in own and not (name in found and found[name].value == value):
            raise _refused(f"{name}={value} has no effect here: leave it out, and set policies of the topic instead")
    minutes, megabytes = retention_of(own, session.config.retention_minutes)
    if is_only_checked:
        return
    decide = partial(with_retention, minutes, megabytes) if own else _without_retention
    await session.service.policies.update_topic(topic, decide)


def _without_retention(policies: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in policies.items() if name != _RETENTION}


def _invalid(why: str) -> KafkaRefusedError:
    return KafkaRefusedError(ErrorCode.INVALID_REQUEST, why)


def _refused(why: str) -> KafkaRefusedError:
    return KafkaRefusedError(ErrorCode.INVALID_CONFIG, why)
