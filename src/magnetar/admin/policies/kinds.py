"""What a policy's value may be: from a request's body to what is stored. Anything else is refused here.

Objects are stored as they came, checked for what a broker reads of them: what it does not know survives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from magnetar.admin.call import Call
from magnetar.admin.errors import BAD_REQUEST, PRECONDITION_FAILED, RestError, refusing_malformed
from magnetar.broker.policies.checks import check_auto_topic_creation, check_persistence, check_retention
from magnetar.broker.policies.fields import flag, optional_number
from magnetar.broker.policies.values import (
    BacklogQuota,
    DeleteMode,
    DispatchRate,
    InactiveTopics,
    Persistence,
    PublishRate,
    Retention,
    SubscribeRate,
)
from magnetar.broker.schemas.strategy import UNDEFINED, CompatibilityStrategy
from magnetar.config.defaults import SUBSCRIPTION_TYPES
from magnetar.errors import InvalidPolicyError

Parse = Callable[[Call], Any]


def count(call: Call) -> int:
    """Zero or more."""
    return checked_count(call.json_integer())


def checked_count(value: int) -> int:
    if value < 0:
        raise RestError(PRECONDITION_FAILED, f"the value must be 0 or more, not {value}")
    return value


def count_in_query(name: str) -> Parse:
    """Where Pulsar has the value behind the question mark; a body is taken, too."""

    def parse(call: Call) -> int:
        return checked_count(call.query_number(name, 0)) if name in call.query else count(call)

    return parse


def optional_count(call: Call) -> int | None:
    return None if call.json() is None else count(call)


def switch(call: Call) -> bool:
    return call.json_flag()


def always_on(call: Call) -> bool:
    """Of a policy that is set by asking for it, and unset by deleting it."""
    del call
    return True


def names(call: Call) -> list[str]:
    return call.json_names()


def one_of(*choices: str) -> Parse:
    def parse(call: Call) -> str:
        found = call.json() if call.body.lstrip()[:1] == b'"' else call.body.decode("utf-8", "replace").strip()
        if found not in choices:
            raise RestError(PRECONDITION_FAILED, f"{found!r} is not one of {', '.join(choices)}")
        return str(found)

    return parse


strategy = one_of(UNDEFINED, *CompatibilityStrategy)
auth_mode = one_of("None", "Prefix")


def subscription_types(call: Call) -> list[str]:
    found = call.json_names()
    if unknown := [each for each in found if each not in SUBSCRIPTION_TYPES]:
        raise RestError(PRECONDITION_FAILED, f"{unknown[0]!r} is not one of {', '.join(SUBSCRIPTION_TYPES)}")
    return sorted(set(found), key=SUBSCRIPTION_TYPES.index)


# --- objects ----------------------------------------------------------------------------------------------------------


def _object(check: Callable[[dict[str, Any]], object], defaults: dict[str, Any] | None = None) -> Parse:
    """`defaults`: what is not said is stored as this, because it must be there."""

    def parse(call: Call) -> dict[str, Any]:
        found = (defaults or {}) | {name: value for name, value in call.json_object().items() if value is not None}
        with refusing_malformed():
            check(found)
        return found

    return parse


def _check_retention(value: dict[str, Any]) -> None:
    try:
        check_retention(Retention.from_json(value))
    except InvalidPolicyError as error:
        raise RestError(BAD_REQUEST, f"Invalid retention policy: {error}") from None


def _check_delayed(value: dict[str, Any]) -> None:
    flag(value, "active")
    for name in ("tickTime", "maxDeliveryDelayInMillis"):
        if (optional_number(value, name) or 0) < 0:
            raise RestError(PRECONDITION_FAILED, f"{name} must be 0 or more")


def _check_auto_subscription(value: dict[str, Any]) -> None:
    if flag(value, "allowAutoSubscriptionCreation") is None:
        raise RestError(BAD_REQUEST, "allowAutoSubscriptionCreation must be true or false")


retention = _object(_check_retention, Retention(0, 0).to_json())
persistence = _object(
    lambda value: check_persistence(Persistence.from_json(value)), Persistence(2, 2, 2, -1.0).to_json()
)
publish_rate = _object(PublishRate.from_json, PublishRate(-1, -1).to_json())
dispatch_rate = _object(DispatchRate.from_json, DispatchRate(-1, -1).to_json())
subscribe_rate = _object(SubscribeRate.from_json, SubscribeRate(-1, 30).to_json())
inactive_topics = _object(InactiveTopics.from_json, InactiveTopics(False, DeleteMode.NO_SUBSCRIPTIONS, 0).to_json())
delayed_delivery = _object(_check_delayed)
auto_subscription = _object(_check_auto_subscription)


def auto_topic(call: Call) -> dict[str, Any]:
    found = {name: value for name, value in call.json_object().items() if value is not None}
    with refusing_malformed():
        check_auto_topic_creation(found, partitions_max=call.service.config.broker.partitions_max)
    return found


def backlog_quota(call: Call) -> dict[str, Any]:
    with refusing_malformed():
        return BacklogQuota.from_json(call.json_object()).to_json()
