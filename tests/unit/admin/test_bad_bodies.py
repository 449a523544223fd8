"""Bodies that no handler can do anything with: refused with a reason, and never a failure of the server's."""

from __future__ import annotations

import pytest

from tests.unit.admin.admin_world import TOPIC, V2, AdminWorld, admin_world

pytestmark = pytest.mark.virtual_time

NAMESPACE = f"{V2}/namespaces/public/default"
DEEP = b"[" * 100_000
DEEP_ENOUGH = b"[" * 102 + b"]" * 102
"""Python reads it, but not everything that is done with it would end well."""

SAID_OF_JSON = [
    (b"{", "Expecting"),
    (b"\xff", "decode"),
    (DEEP, "nested more than 100 levels deep"),
    (DEEP_ENOUGH, "nested more than 100 levels deep"),
    (b'{"a": "\\ud800"}', "surrogate pair, '\\ud800', is not a character"),
    (b'{"\\udfff": "a"}', "surrogate pair"),
    (b'{"a": "\xed\xa0\x80"}', "surrogate pair"),
    (b'{"a": ["\\ud800"]}', "surrogate pair"),
    (b'{"a": NaN}', "nan is not a number"),
    (b'{"a": [-Infinity]}', "-inf is not a number"),
    (b'{"a": 1e400}', "inf is not a number"),
]


PATHS = [  # Of each way in which bodies are read.
    ("PUT", f"{V2}/tenants/acme"),
    ("PUT", f"{V2}/namespaces/public/n"),
    ("PUT", f"{NAMESPACE}/properties"),
    ("POST", f"{NAMESPACE}/messageTTL"),
    ("POST", f"{NAMESPACE}/retention"),
    ("POST", f"{NAMESPACE}/subscriptionTypesEnabled"),
    ("PUT", f"{TOPIC}/properties"),
    ("PUT", f"{TOPIC}/partitions"),
    ("PUT", f"{TOPIC}/subscription/s"),
    ("POST", f"{V2}/schemas/public/default/t/schema"),
]


async def refused(world: AdminWorld, method: str, path: str, body: bytes) -> tuple[int, str]:
    answer = await world.call(method, path, raw=body)
    return answer.status, answer.reason


async def test_json_that_cannot_be_taken_is_refused_wherever_it_is_sent() -> None:
    async with admin_world() as world:
        await world.done("PUT", TOPIC)
        for method, path in PATHS:
            for body, said in SAID_OF_JSON:
                status, reason = await refused(world, method, path, body)
                assert (status, said in reason) == (400, True), (path, body[:40], reason)


WRONG_TYPES: list[tuple[str, str, bytes, int, str]] = [
    ("PUT", f"{TOPIC}/partitions", b'{"partitions": 3, "properties": [1]}', 400, "properties is [1]"),
    ("PUT", f"{TOPIC}/partitions", b'{"partitions": 3, "properties": "x"}', 400, "properties is 'x'"),
    ("POST", f"{TOPIC}/partitions", b'{"partitions": 3, "properties": [1]}', 400, "properties is [1]"),
    ("PUT", f"{TOPIC}/partitions", b"9223372036854775808", 400, "9223372036854775808 are more partitions"),
    ("PUT", f"{V2}/tenants/acme", b'{"allowedClusters": ["standalone"], "adminRoles": 5}', 400, "adminRoles is 5"),
    ("PUT", f"{V2}/tenants/acme", b'{"allowedClusters": ["standalone"], "adminRoles": [{}]}', 400, "adminRoles"),
    ("POST", f"{V2}/tenants/public", b'{"allowedClusters": ["standalone"], "adminRoles": 5}', 400, "adminRoles is 5"),
    ("POST", f"{V2}/clusters/standalone", b'{"peerClusterNames": 5}', 400, "peerClusterNames is 5"),
    ("PUT", f"{V2}/clusters/other", b'{"peerClusterNames": [[]]}', 400, "peerClusterNames is [[]]"),
    ("PUT", f"{V2}/clusters/other", b'{"serviceUrl": 5}', 400, "serviceUrl is 5"),
    ("PUT", f"{V2}/namespaces/public/n", b'{"replication_clusters": 5}', 400, "replication_clusters is 5"),
    ("PUT", f"{V2}/namespaces/public/n", b'{"replication_clusters": [{}]}', 400, "replication_clusters is [{}]"),
    ("PUT", f"{V2}/namespaces/public/n", b'{"bundles": 5}', 400, "bundles is 5"),
    ("PUT", f"{V2}/namespaces/public/n", b'{"bundles": {"boundaries": ["x"]}}', 400, "boundaries"),
    ("PUT", f"{V2}/namespaces/public/n", b'{"bundles": {"numBundles": "x"}}', 400, "numBundles is 'x'"),
    ("POST", f"{NAMESPACE}/autoTopicCreation", b'{"allowAutoTopicCreation": 5}', 400, "allowAutoTopicCreation is 5"),
    (
        "POST",
        f"{NAMESPACE}/autoTopicCreation",
        b'{"allowAutoTopicCreation": true, "topicType": ["partitioned"], "defaultNumPartitions": 3}',
        400,
        "topicType is ['partitioned']",
    ),
    (
        "POST",
        f"{NAMESPACE}/autoTopicCreation",
        b'{"allowAutoTopicCreation": true, "topicType": "partitioned", "defaultNumPartitions": "x"}',
        400,
        "defaultNumPartitions is 'x'",
    ),
    ("POST", f"{V2}/schemas/public/default/t/schema", b'{"type": ["x"], "schema": "{}"}', 422, "not a type of schemas"),
    (
        "POST",
        f"{V2}/schemas/public/default/t/schema",
        b'{"type": "KEY_VALUE", "schema": "{\\"key\\": 1, \\"value\\": \\"\\\\ud800\\"}"}',
        422,
        "key and value",
    ),
]


async def test_a_value_of_the_wrong_type_is_refused_and_named() -> None:
    async with admin_world() as world:
        for method, path, body, status, said in WRONG_TYPES:
            found, reason = await refused(world, method, path, body)
            assert (found, said in reason) == (status, True), (path, body, reason)
        assert (await world.get(f"{V2}/clusters/standalone/peers")).json == []
        assert (await world.get(f"{V2}/tenants")).json == ["public", "pulsar"]


async def test_a_pair_whose_definition_is_nested_too_deeply_is_refused() -> None:
    async with admin_world() as world:
        deep = b'{"type": "KEY_VALUE", "schema": "' + DEEP + b'"}'
        status, reason = await refused(world, "POST", f"{V2}/schemas/public/default/t/schema", deep)
        assert (status, "key and value" in reason) == (422, True)
