"""Kinds of policies: how a value is stored, when it counts as set, and what the admin API accepts and shows.

Purpose:   A row of registry.py names its kind; everything that depends on the type of the value is here.
Format:    A field of a document is checked for its JSON type at every level, also where another level counts. These are
           not set: a field that is absent or null, a count below zero, a rate that limits nothing, an empty list of
           names. The next level counts then. An object is stored as the client sent it, after a check of what a broker
           reads: other fields survive.
Read next: rows.py (levels), values.py (the types), registry.py (the rows)
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, TypeAlias, TypeVar

from magnetar.broker.policies.values import (
    AutoTopicCreation,
    BacklogQuota,
    BacklogQuotas,
    DelayedDelivery,
    DeleteMode,
    DispatchRate,
    InactiveTopics,
    Json,
    Persistence,
    PublishRate,
    QuotaPolicy,
    Retention,
    SubscribeRate,
    check_auto_topic_creation,
    check_persistence,
    check_retention,
    flag,
    names,
    nested,
    number,
    optional_number,
    text,
)
from magnetar.config.defaults import SUBSCRIPTION_TYPES, listed_names
from magnetar.config.root import Config
from magnetar.errors import InvalidPolicyError, MalformedMetadataError
from magnetar.schemas.compatibility import UNDEFINED, CompatibilityStrategy

T = TypeVar("T")
Rate = TypeVar("Rate", PublishRate, DispatchRate, SubscribeRate)

Form: TypeAlias = Callable[[Json, str], Any]
"""Reads one field of a document and checks its JSON type; one of the functions of values.py."""

NO_RATES: Mapping[str, DispatchRate] = MappingProxyType({})


class Sent(enum.Enum):
    """What a request carries to set a policy; admin/policies.py reads it."""

    INTEGER = enum.auto()
    INTEGER_OR_NULL = enum.auto()
    FLAG = enum.auto()
    NAME = enum.auto()
    NAMES = enum.auto()
    OBJECT = enum.auto()
    NOTHING = enum.auto()
    """The request itself switches the policy on; deleting it switches the policy off."""


def _same(value: Any) -> Any:
    return value


def _unchanged(value: Any, _config: Config) -> Any:
    return value


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kind(Generic[T]):
    form: Form
    merged: Callable[[Sequence[Any], T], T]
    """Chooses the value that counts from the stored ones, the first level first, and the default."""
    default: Callable[..., T] = _same
    """Makes the default from the values of the row's settings."""
    sent: Sent
    body: str
    """What a client sends, in words for OpenAPI."""
    accepted: Callable[[Any, Config], Any] = _unchanged
    """Turns what a client sent into what is stored. MalformedMetadataError or InvalidPolicyError if it is refused."""
    shown: Callable[[T, Config], Any] = _unchanged
    """Returns the value that counts as JSON."""


# --- parts of kinds ---------------------------------------------------------------------------------------------------


def _first(read: Callable[[Any], T | None]) -> Callable[[Sequence[Any], T], T]:
    """The first level at which `read` finds a value; otherwise the default."""

    def merged(stored: Sequence[Any], default: T) -> T:
        for each in stored:
            if each is not None and (found := read(each)) is not None:
                return found
        return default

    return merged


def _object(check: Callable[[dict[str, Any]], object], defaults: Json = NO_RATES) -> Callable[[Any, Config], Any]:
    """`defaults` are stored for fields that the client left out, because readers need these fields."""

    def accepted(sent: dict[str, Any], _config: Config) -> dict[str, Any]:
        found = dict(defaults) | _without_nulls(sent)
        check(found)
        return found

    return accepted


def _without_nulls(sent: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in sent.items() if value is not None}


# --- counts, switches and names ---------------------------------------------------------------------------------------


def _not_negative(value: int) -> int | None:
    return value if value >= 0 else None


def _accepted_count(value: int | None, _config: Config) -> int | None:
    if value is not None and value < 0:
        raise InvalidPolicyError(f"the value must be 0 or more, not {value}")
    return value


def _count(sent: Sent, body: str) -> Kind[Any]:
    return Kind(form=optional_number, merged=_first(_not_negative), sent=sent, body=body, accepted=_accepted_count)


def _switch(sent: Sent, body: str) -> Kind[bool]:
    return Kind(form=flag, merged=_first(_same), sent=sent, body=body)


def _one_of(*choices: str) -> Callable[[str, Config], str]:
    def accepted(sent: str, _config: Config) -> str:
        if sent not in choices:
            raise InvalidPolicyError(f"{sent!r} is not one of {', '.join(choices)}")
        return sent

    return accepted


COUNT: Kind[int] = _count(Sent.INTEGER, "a count")
COUNT_OR_NULL: Kind[int] = _count(Sent.INTEGER_OR_NULL, "a count, or null")
OPTIONAL_COUNT: Kind[int | None] = _count(Sent.INTEGER, "a count")
SWITCH = _switch(Sent.FLAG, "true or false")
SWITCH_WITHOUT_BODY = _switch(Sent.NOTHING, "")

AUTH_MODE: Kind[str] = Kind(
    form=text, merged=_first(_same), sent=Sent.NAME, body="None or Prefix", accepted=_one_of("None", "Prefix")
)


def _read_strategy(name: str) -> CompatibilityStrategy | None:
    return None if name == UNDEFINED else CompatibilityStrategy.parse(name)


STRATEGY: Kind[CompatibilityStrategy] = Kind(
    form=text,
    merged=_first(_read_strategy),
    default=CompatibilityStrategy,
    sent=Sent.NAME,
    body="a strategy's name",
    accepted=_one_of(UNDEFINED, *CompatibilityStrategy),
    shown=lambda value, _: str(value),
)


def _not_empty(found: tuple[str, ...]) -> tuple[str, ...] | None:
    return found or None


def _accepted_types(sent: list[str], _config: Config) -> list[str]:
    if unknown := [each for each in sent if each not in SUBSCRIPTION_TYPES]:
        raise InvalidPolicyError(f"{unknown[0]!r} is not one of {', '.join(SUBSCRIPTION_TYPES)}")
    return sorted(set(sent), key=SUBSCRIPTION_TYPES.index)


SUBSCRIPTION_TYPE_NAMES: Kind[tuple[str, ...]] = Kind(
    form=names,
    merged=_first(_not_empty),
    default=listed_names,
    sent=Sent.NAMES,
    body="a list of types",
    accepted=_accepted_types,
    shown=lambda value, _: list(value),
)
CLUSTERS: Kind[tuple[str, ...]] = Kind(
    form=names,
    merged=_first(_not_empty),
    sent=Sent.NAMES,
    body="a list of clusters",
    shown=lambda value, _: list(value),
)


# --- objects ----------------------------------------------------------------------------------------------------------


def _accepted_retention(value: dict[str, Any]) -> None:
    try:
        check_retention(Retention.from_json(value))
    except InvalidPolicyError as error:
        raise MalformedMetadataError(f"Invalid retention policy: {error}") from None


RETENTION: Kind[Retention] = Kind(
    form=nested,
    merged=_first(Retention.from_json),
    default=Retention,
    sent=Sent.OBJECT,
    body="RetentionPolicies",
    accepted=_object(_accepted_retention, Retention(0, 0).to_json()),
    shown=lambda value, _: value.to_json(),
)


def _shown_persistence(value: Persistence | None, config: Config) -> Any:
    topic = config.topic
    return (value or Persistence(topic.ensemble_size, topic.write_quorum, topic.ack_quorum, 1.0)).to_json()


PERSISTENCE: Kind[Persistence | None] = Kind(
    form=nested,
    merged=_first(Persistence.from_json),
    sent=Sent.OBJECT,
    body="PersistencePolicies",
    accepted=_object(
        lambda value: check_persistence(Persistence.from_json(value)), Persistence(2, 2, 2, -1.0).to_json()
    ),
    shown=_shown_persistence,
)


def _rate_of(rate: type[Rate]) -> Callable[[int, int], Rate | None]:
    def default(count: int, size_or_period: int) -> Rate | None:
        made = rate(count, size_or_period)
        return made if made.is_limiting else None

    return default


PUBLISH_RATE: Kind[PublishRate | None] = Kind(
    form=nested,
    merged=_first(PublishRate.from_json),
    default=_rate_of(PublishRate),
    sent=Sent.OBJECT,
    body="PublishRate",
    accepted=_object(PublishRate.from_json, PublishRate(-1, -1).to_json()),
    shown=lambda value, _: (value or PublishRate(0, 0)).to_json(),
)


def shown_dispatch_rate(value: DispatchRate | None, _config: Config) -> Any:
    return (value or DispatchRate(0, 0)).to_json()


DISPATCH_RATE: Kind[DispatchRate | None] = Kind(
    form=nested,
    merged=_first(DispatchRate.from_json),
    default=_rate_of(DispatchRate),
    sent=Sent.OBJECT,
    body="DispatchRate",
    accepted=_object(DispatchRate.from_json, DispatchRate(-1, -1).to_json()),
    shown=shown_dispatch_rate,
)


def _rates_of_subscriptions(stored: Sequence[Any], default: Mapping[str, DispatchRate]) -> Mapping[str, DispatchRate]:
    rates: dict[str, DispatchRate] = {}
    for subscriptions in reversed(stored):  # The topic's own last: they count before its global ones.
        for name in subscriptions or ():
            rate = nested(nested(subscriptions, name) or {}, "dispatchRate")
            if rate is not None and (found := DispatchRate.from_json(rate)) is not None:
                rates[name] = found
    return rates or default


DISPATCH_RATES_BY_SUBSCRIPTION: Kind[Mapping[str, DispatchRate]] = Kind(
    form=nested,
    merged=_rates_of_subscriptions,
    sent=Sent.OBJECT,
    body="DispatchRate",
    accepted=_object(DispatchRate.from_json, DispatchRate(-1, -1).to_json()),
)


SUBSCRIBE_RATE: Kind[SubscribeRate | None] = Kind(
    form=nested,
    merged=_first(SubscribeRate.from_json),
    default=_rate_of(SubscribeRate),
    sent=Sent.OBJECT,
    body="SubscribeRate",
    accepted=_object(SubscribeRate.from_json, SubscribeRate(-1, 30).to_json()),
    shown=lambda value, _: (value or SubscribeRate(0, 30)).to_json(),
)
INACTIVE_TOPICS: Kind[InactiveTopics] = Kind(
    form=nested,
    merged=_first(InactiveTopics.from_json),
    default=lambda is_deleted, mode, after_s: InactiveTopics(is_deleted, DeleteMode(mode), after_s),
    sent=Sent.OBJECT,
    body="InactiveTopicPolicies",
    accepted=_object(InactiveTopics.from_json, InactiveTopics(False, DeleteMode.NO_SUBSCRIPTIONS, 0).to_json()),
    shown=lambda value, _: value.to_json(),
)


def _merged_quotas(stored: Sequence[Any], default: BacklogQuotas) -> BacklogQuotas:
    """Each kind by itself: a level that sets the one does not hide the other."""
    read = _first(BacklogQuota.from_json)
    size, age = BacklogQuotas.NAMES
    return BacklogQuotas(
        read([nested(found, size) for found in stored if found is not None], default.storage),
        read([nested(found, age) for found in stored if found is not None], default.age),
    )


def _default_quotas(limit_bytes: int, limit_s: int, policy: str) -> BacklogQuotas:
    quota = BacklogQuota(limit_bytes, limit_s, QuotaPolicy(policy))
    return BacklogQuotas(quota, quota)


BACKLOG_QUOTAS: Kind[BacklogQuotas] = Kind(
    form=nested,
    merged=_merged_quotas,
    default=_default_quotas,
    sent=Sent.OBJECT,
    body="BacklogQuota",
    accepted=lambda sent, _: BacklogQuota.from_json(sent).to_json(),
    shown=lambda value, _: value.to_json(),
)


def _merged_delays(stored: Sequence[Any], default: DelayedDelivery) -> DelayedDelivery:
    """Each part by itself."""
    found = [each for each in stored if each is not None]
    active, tick, longest = DelayedDelivery.NAMES
    return DelayedDelivery(
        SWITCH.merged([flag(each, active) for each in found], default.is_enabled),
        COUNT.merged([optional_number(each, tick) for each in found], default.tick_ms),
        COUNT.merged([optional_number(each, longest) for each in found], default.max_ms),
    )


def _check_delays(value: dict[str, Any]) -> None:
    active, *times = DelayedDelivery.NAMES
    flag(value, active)
    for name in times:
        if (optional_number(value, name) or 0) < 0:
            raise InvalidPolicyError(f"{name} must be 0 or more")


DELAYED_DELIVERY: Kind[DelayedDelivery] = Kind(
    form=nested,
    merged=_merged_delays,
    default=DelayedDelivery,
    sent=Sent.OBJECT,
    body="DelayedDeliveryPolicies",
    accepted=_object(_check_delays),
    shown=lambda value, _: value.to_json(),
)

_ALLOW_SUBSCRIPTIONS = "allowAutoSubscriptionCreation"


def _check_auto_subscription(value: dict[str, Any]) -> None:
    if flag(value, _ALLOW_SUBSCRIPTIONS) is None:
        raise MalformedMetadataError(f"{_ALLOW_SUBSCRIPTIONS} must be true or false")


AUTO_SUBSCRIPTION: Kind[bool] = Kind(
    form=nested,
    merged=_first(lambda found: flag(found, _ALLOW_SUBSCRIPTIONS)),
    sent=Sent.OBJECT,
    body="AutoSubscriptionCreationOverride",
    accepted=_object(_check_auto_subscription),
    shown=lambda value, _: {_ALLOW_SUBSCRIPTIONS: value},
)


def _merged_auto_topic(stored: Sequence[Any], default: AutoTopicCreation) -> AutoTopicCreation:
    for each in stored:
        if each is not None:
            return AutoTopicCreation(
                flag(each, "allowAutoTopicCreation") or False,
                text(each, "topicType") == AutoTopicCreation.PARTITIONED,
                number(each, "defaultNumPartitions", default.partitions_if_partitioned),
            )
    return default


def _accepted_auto_topic(sent: dict[str, Any], config: Config) -> dict[str, Any]:
    found = _without_nulls(sent)
    check_auto_topic_creation(found, partitions_max=config.broker.partitions_max)
    return found


AUTO_TOPIC: Kind[AutoTopicCreation] = Kind(
    form=nested,
    merged=_merged_auto_topic,
    default=lambda allowed, kind, count: AutoTopicCreation(allowed, kind == AutoTopicCreation.PARTITIONED, count),
    sent=Sent.OBJECT,
    body="AutoTopicCreationOverride",
    accepted=_accepted_auto_topic,
)
ENTRY_FILTERS: Kind[str] = Kind(
    form=nested,
    merged=_first(lambda found: text(found, "entryFilterNames")),
    sent=Sent.OBJECT,
    body="EntryFilters",
    accepted=_object(lambda value: text(value, "entryFilterNames")),
    shown=lambda value, _: {"entryFilterNames": value},
)
