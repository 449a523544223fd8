from __future__ import annotations

import pulsar
import pytest
from pulsar.schema import (
    AvroSchema,
    BytesSchema,
    Integer,
    JsonSchema,
    Record,
    Schema,
    String,
    StringSchema,
)

from magnetar.testing.processes.child import wait_for
from tests.integration.pulsar.features.conftest import PATIENCE_MS, Server, clients_of
from tests.integration.pulsar.features.test_subscriptions import path_of


class Person(Record):
    name = String()
    age = Integer()


def stored(server: Server, topic: str, version: int | None = None) -> dict[str, str]:
    suffix = "" if version is None else f"/{version}"
    name = topic.removeprefix("persistent://")
    found: dict[str, str] = server.admin("GET", f"schemas/{name}/schema{suffix}")
    return found


@pytest.mark.parametrize("kind", [JsonSchema, AvroSchema])
def test_records_come_back_as_records(client: pulsar.Client, server: Server, topic: str, kind: type) -> None:
    consumer = client.subscribe(topic, "s", schema=kind(Person))
    client.create_producer(topic, schema=kind(Person)).send(Person(name="Ada", age=36))
    value = consumer.receive(PATIENCE_MS).value()
    assert (value.name, value.age) == ("Ada", 36)
    assert stored(server, topic)["type"] == ("JSON" if kind is JsonSchema else "AVRO")


@pytest.mark.parametrize(
    ("schema", "value", "kind"), [(StringSchema(), "text", "STRING"), (BytesSchema(), b"bytes", "BYTES")]
)
def test_plain_values_come_back(
    client: pulsar.Client, server: Server, topic: str, schema: Schema, value: object, kind: str
) -> None:
    consumer = client.subscribe(topic, "s", schema=schema)
    client.create_producer(topic, schema=schema).send(value)
    assert consumer.receive(PATIENCE_MS).value() == value


def test_a_schema_that_does_not_fit_is_refused(client: pulsar.Client, topic: str) -> None:
    class Stranger(Record):
        colour = Integer(required=True)

    client.create_producer(topic, schema=AvroSchema(Person)).send(Person(name="Ada", age=36))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=AvroSchema(Stranger))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=StringSchema())


def test_a_schema_that_grows_has_versions(client: pulsar.Client, server: Server, topic: str) -> None:
    class Person2(Record):
        _avro_namespace = None
        name = String()
        age = Integer()
        town = String(default="nowhere", required_default=True)

    Person2.__name__ = "Person"
    consumer = client.subscribe(topic, "s", schema=AvroSchema(Person))
    client.create_producer(topic, schema=AvroSchema(Person)).send(Person(name="Ada", age=36))
    client.create_producer(topic, schema=AvroSchema(Person2)).send(Person2(name="Bob", age=40, town="Here"))
    first, second = consumer.receive(PATIENCE_MS), consumer.receive(PATIENCE_MS)
    assert first.schema_version() != second.schema_version()
    assert (first.value().name, second.value().name) == ("Ada", "Bob")
    assert "town" not in stored(server, topic, 0)["data"]
    assert "town" in stored(server, topic, 1)["data"]


def test_the_same_schema_is_stored_once(client: pulsar.Client, server: Server, topic: str) -> None:
    for _ in range(3):
        client.create_producer(topic, schema=AvroSchema(Person))
    versions = server.admin("GET", f"schemas/{topic.removeprefix('persistent://')}/schemas")
    assert len(versions["getSchemaResponses"]) == 1


def test_a_consumer_without_a_schema_reads_a_topic_that_has_one(client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic, schema=JsonSchema(Person)).send(Person(name="Ada", age=36))
    consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    assert b"Ada" in consumer.receive(PATIENCE_MS).data()


def test_stats_name_what_a_topic_has(client: pulsar.Client, server: Server, topic: str) -> None:
    producer = client.create_producer(topic, producer_name="maker")
    producer.send(b"x")
    consumer = client.subscribe(topic, "s", consumer_name="taker")
    wait_for(lambda: clients_of(server, topic) == 2, what="both clients")
    stats = server.admin("GET", f"{path_of(topic)}/stats")
    assert [each["producerName"] for each in stats["publishers"]] == ["maker"]
    assert [each["consumerName"] for each in stats["subscriptions"]["s"]["consumers"]] == ["taker"]
    producer.close()
    consumer.close()
