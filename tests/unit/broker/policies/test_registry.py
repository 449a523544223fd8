"""The registry: a policy is one row, and everything else follows from it."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.admin.policies import namespace_routes, topic_routes
from magnetar.broker.policies.events import fields_of, parsed_event_schema, unknown_field
from magnetar.broker.policies.kinds import COUNT
from magnetar.broker.policies.registry import EffectivePolicies, NamespacePolicies, known_policies
from magnetar.broker.policies.rows import Documents, Place, known_fields, merge, policy, rows_of
from magnetar.config.defaults import TopicDefaultsConfig
from magnetar.config.root import Config
from tests.unit.admin.admin_world import TOPIC, V2, admin_world
from tests.unit.broker import golden

NOT_POLICIES_OF_OURS = {"isGlobal", "offloadPolicies", "shadowTopics"}
"""Fields of Apache's TopicPolicies that magnetar keeps and does not act on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WithAnotherLimit(EffectivePolicies):
    """What a developer writes for a new limit on subscriptions. A field of Apache's stands in for the new one."""

    unacked_bytes_per_subscription_max: int = policy(
        COUNT,
        "the maximum number of unacknowledged bytes of a subscription",
        topic=Place("maxUnackedMessagesOnSubscription", "maxUnackedBytesOnSubscription"),
        namespace=Place("max_unacked_bytes_per_subscription", "maxUnackedBytesPerSubscription"),
        settings=("defaults.message_ttl_s",),
        system=0,
    )


NEW = rows_of(WithAnotherLimit)["unacked_bytes_per_subscription_max"]


def limit(documents: Documents, default: int = 9, *, is_system: bool = False) -> int:
    config = Config(defaults=TopicDefaultsConfig(message_ttl_s=default))
    return merge(WithAnotherLimit, documents, config, is_system=is_system).unacked_bytes_per_subscription_max


def test_new_row_is_merged_from_all_levels() -> None:
    own, shared = {"maxUnackedMessagesOnSubscription": 1}, {"maxUnackedMessagesOnSubscription": 2}
    namespace = {"max_unacked_bytes_per_subscription": 3}
    assert limit(Documents(own, shared, namespace)) == 1
    assert limit(Documents(None, shared, namespace)) == 2
    assert limit(Documents({"maxUnackedMessagesOnSubscription": -1}, None, namespace)) == 3
    assert limit(Documents()) == 9
    assert limit(Documents(own, shared, namespace), is_system=True) == 0


def test_new_row_is_known_in_documents_of_clients() -> None:
    assert known_fields(WithAnotherLimit)["max_unacked_bytes_per_subscription"] is COUNT.form
    assert "max_unacked_bytes_per_subscription" not in known_policies(
        {"max_unacked_bytes_per_subscription": 3}, Config()
    )


async def test_new_row_has_routes_at_both_levels() -> None:
    rows = {"unacked_per_subscription_max": NEW}
    routes = [*namespace_routes(rows), *topic_routes(rows)]
    assert {(route.method, route.summary) for route in routes} == {
        ("GET", "Get the maximum number of unacknowledged bytes of a subscription"),
        ("POST", "Set the maximum number of unacknowledged bytes of a subscription"),
        ("DELETE", "Remove the setting of the maximum number of unacknowledged bytes of a subscription"),
    }
    async with admin_world(routes=routes) as world:
        await world.done("PUT", TOPIC)
        for path in (
            f"{V2}/namespaces/public/default/maxUnackedBytesPerSubscription",
            f"{TOPIC}/maxUnackedBytesOnSubscription",
        ):
            await world.done("POST", path, 7)
            assert (await world.get(path)).json == 7
            assert (await world.call("POST", path, -7)).status == 412
            await world.done("DELETE", path)
            assert (await world.get(path)).body == b""
        applied = await world.get(f"{TOPIC}/maxUnackedBytesOnSubscription?applied=true")
        assert applied.json == Config().dispatch.unacked_messages_per_subscription_max


def test_schema_of_events_has_a_field_for_each_policy_of_topics() -> None:
    schema = parsed_event_schema()
    used = {
        name
        for row in rows_of(EffectivePolicies).values()
        if row.topic is not None
        for name in row.topic.fields(row.kind.form)
    }
    assert [name for name in sorted(used) if unknown_field(schema, {name: 1}) is not None] == []
    assert fields_of(schema) == used | NOT_POLICIES_OF_OURS


def test_every_field_that_apache_writes_for_a_namespace_is_known() -> None:
    written = golden.document("policies full")
    assert known_policies(written, Config()) == {name: value for name, value in written.items() if value is not None}


def test_no_two_rows_share_a_path_or_a_field() -> None:
    rows = [*rows_of(EffectivePolicies).values(), *rows_of(NamespacePolicies).values()]
    for places in ([row.topic for row in rows], [row.namespace for row in rows]):
        present = [place for place in places if place is not None]
        paths = [place.path for place in present if place.path]
        assert len(paths) == len(set(paths))
        fields = [name for place in present for name in place.fields(COUNT.form)]
        assert len(fields) == len(set(fields))
