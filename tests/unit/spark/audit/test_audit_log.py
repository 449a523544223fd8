"""The logs of clients: what is written, when, and by which wrapper of which client."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from magnetar.spark.pipelines.audit import values as audit_values
from magnetar.testing import audit_log
from magnetar.testing.audit_clients import (
    ConfluentProducer,
    KafkaPythonProducer,
    PulsarClient,
    PulsarConsumer,
    PulsarProducer,
    log_kafka_record,
)
from magnetar.testing.audit_log import HEADER, AuditLog, mark_of, parse_mark, steady_clock


@dataclass
class Written:
    path: Path

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    @property
    def events(self) -> list[str]:
        return [line["event"] for line in self.lines]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path / "log.jsonl")


@pytest.fixture
def log(written: Written) -> Iterator[AuditLog]:
    ticks = iter(range(1_000_000, 2_000_000, 250))
    with AuditLog(written.path, "tester", clock=lambda: next(ticks)) as opened:
        yield opened


def test_a_line_is_in_the_file_before_the_call_returns(log: AuditLog, written: Written) -> None:
    log.sent("orders", "p", 7, key="k", value=b"abc")
    assert written.lines == [
        {
            "event": "sent",
            "client": "tester",
            "n": 0,
            "time": 1_000_000,
            "topic": "orders",
            "producer": "p",
            "sequence": 7,
            "key": "k",
            "crc32": zlib.crc32(b"abc"),
        }
    ]


def test_a_log_is_gone_on_with_and_a_closed_one_takes_nothing(written: Written) -> None:
    for sequence in (1, 2):
        with AuditLog(written.path, "tester") as log:
            log.sent("orders", "p", sequence)
        log.answered("orders", "p", sequence)
    assert [line["sequence"] for line in written.lines] == [1, 2]


def test_the_clock_of_a_log_does_not_go_back() -> None:
    clock = steady_clock()
    times = [clock() for _ in range(100)]
    assert times == sorted(times)


def test_a_mark_tells_producer_and_sequence_even_if_the_name_has_colons() -> None:
    assert parse_mark(mark_of("a:b", 12)) == ("a:b", 12)
    assert parse_mark(mark_of("a", 3).encode()) == ("a", 3)
    assert [parse_mark(other) for other in (None, "", "12", "a:", "a:x", ":4")] == [(None, None)] * 6


def test_pipeline_and_log_agree_about_the_header() -> None:
    assert audit_log.HEADER == audit_values.HEADER


# --- Pulsar -----------------------------------------------------------------------------------------------------------


@dataclass
class MessageId:
    entry: int

    def ledger_id(self) -> int:
        return 3

    def entry_id(self) -> int:
        return self.entry

    def partition(self) -> int:
        return -1

    def batch_index(self) -> int:
        return 0


@dataclass
class Producer:
    """The shape of pulsar.Producer; answers when the test wants it."""

    last: int = -1
    sends: list[dict[str, Any]] = field(default_factory=list)

    def topic(self) -> str:
        return "persistent://public/default/orders"

    def producer_name(self) -> str:
        return "p"

    def last_sequence_id(self) -> int:
        return self.last

    def send(self, content: bytes, properties: Any, *, sequence_id: int, **_options: Any) -> MessageId:
        if content == b"too large":
            raise ValueError(content)
        return MessageId(sequence_id)

    def send_async(self, content: bytes, callback: Any, properties: Any, *, sequence_id: int, **options: Any) -> None:
        self.sends.append({"callback": callback, "properties": properties, "sequence_id": sequence_id, **options})

    def flush(self) -> str:
        return "flushed"


def test_a_message_is_logged_before_the_client_has_it_and_again_when_it_is_answered(
    log: AuditLog, written: Written
) -> None:
    client, answers = Producer(), []
    producer = PulsarProducer(client, log)
    producer.send_async(b"a", lambda *answer: answers.append(answer), partition_key="k")
    assert written.events == ["sent"]
    (sent,) = client.sends
    assert sent["sequence_id"] == 1
    assert sent["partition_key"] == "k"
    assert sent["properties"] == {HEADER: "p:1"}
    result = SimpleNamespace(name="Ok")
    sent["callback"](result, MessageId(9))
    assert answers == [(result, MessageId(9))]
    answer = written.lines[1]
    assert (answer["event"], answer["outcome"], answer["message_id"]) == ("answered", "ok", "3:9:-1:0")


def test_a_refusal_is_no_acknowledgement(log: AuditLog, written: Written) -> None:
    client = Producer()
    PulsarProducer(client, log).send_async(b"a", None)
    client.sends[0]["callback"](SimpleNamespace(name="Timeout"), None)
    answer = written.lines[1]
    assert answer["outcome"] == "failed"
    assert "message_id" not in answer


def test_sequences_go_on_behind_those_of_a_producer_of_the_same_name(log: AuditLog) -> None:
    client = Producer(last=41)
    PulsarProducer(client, log, marked=False).send_async(b"a")
    assert client.sends[0]["sequence_id"] == 42
    assert client.sends[0]["properties"] is None


def test_a_send_that_waits_is_logged_with_its_outcome(log: AuditLog, written: Written) -> None:
    producer = PulsarProducer(Producer(), log)
    assert producer.send(b"a") == MessageId(1)
    with pytest.raises(ValueError, match="too large"):
        producer.send(b"too large")
    assert [line["outcome"] for line in written.lines if line["event"] == "answered"] == ["ok", "failed"]


def test_what_a_client_makes_is_logged(log: AuditLog, written: Written) -> None:
    message = received_message()
    made = {
        "create_producer": lambda topic, **options: Producer(),
        "subscribe": lambda topic, name: SimpleNamespace(subscription_name=lambda: name, receive=lambda wait: message),
        "create_reader": lambda topic, start: SimpleNamespace(read_next=lambda wait: message),
        "close": lambda: "closed",
    }
    client = PulsarClient(SimpleNamespace(**made), log)
    client.create_producer("orders", block_if_queue_full=True).send(b"a")
    client.subscribe("orders", "billing").receive(1)
    client.create_reader("orders", None).read_next(1)
    assert client.close() == "closed"
    assert written.events == ["sent", "answered", "received", "received"]
    assert [line["subscription"] for line in written.lines[2:]] == ["billing", "(reader)"]


def test_everything_else_is_the_clients_own(log: AuditLog) -> None:
    assert PulsarProducer(Producer(), log).flush() == "flushed"


def received_message() -> SimpleNamespace:
    return SimpleNamespace(
        topic_name=lambda: "persistent://public/default/orders-partition-2",
        properties=lambda: {HEADER: "p:5"},
        message_id=lambda: MessageId(8),
        producer_name=lambda: "p",
        partition_key=lambda: "",
        data=lambda: b"abc",
        publish_timestamp=lambda: 1_700_000_000_123,
        redelivery_count=lambda: 1,
    )


def test_what_a_consumer_receives_is_logged(log: AuditLog, written: Written) -> None:
    message = received_message()
    client = SimpleNamespace(subscription_name=lambda: "billing", receive=lambda timeout: message)
    assert PulsarConsumer(client, log).receive(100) is message
    (line,) = written.lines
    assert (line["subscription"], line["producer"], line["sequence"]) == ("billing", "p", 5)
    assert (line["published"], line["redelivery_count"]) == (1_700_000_000_123_000, 1)
    assert (line["crc32"], line["message_id"]) == (zlib.crc32(b"abc"), "3:8:-1:0")
    assert "key" not in line


# --- Kafka ------------------------------------------------------------------------------------------------------------


def test_a_confluent_producer_is_followed_by_its_delivery_callback(log: AuditLog, written: Written) -> None:
    calls: list[dict[str, Any]] = []
    client = SimpleNamespace(produce=lambda topic, value, key, **options: calls.append(options), flush=lambda: 0)
    producer, answers = ConfluentProducer(client, log, "k"), []
    producer.produce(
        "orders", b"v", b"key", headers=[("mine", b"1")], on_delivery=lambda *answer: answers.append(answer)
    )
    producer.produce("orders", b"w")
    assert calls[0]["headers"] == [("mine", b"1"), (HEADER, b"k:1")]
    calls[0]["on_delivery"](None, SimpleNamespace(partition=lambda: 2, offset=lambda: 77))
    calls[1]["on_delivery"]("timed out", None)
    assert len(answers) == 1
    assert [(line["event"], line["sequence"]) for line in written.lines] == [
        ("sent", 1),
        ("sent", 2),
        ("answered", 1),
        ("answered", 2),
    ]
    assert [line.get("message_id") for line in written.lines[2:]] == ["2:77", None]
    assert producer.flush() == 0


def test_a_kafka_python_producer_is_followed_by_its_future(log: AuditLog, written: Written) -> None:
    hooks: dict[str, Any] = {}
    future = SimpleNamespace(
        add_callback=lambda call: hooks.update(ok=call), add_errback=lambda call: hooks.update(bad=call)
    )
    client = SimpleNamespace(send=lambda topic, **options: future)
    assert KafkaPythonProducer(client, log, "k").send("orders", b"v", key=b"a") is future
    hooks["ok"](SimpleNamespace(partition=0, offset=5))
    hooks["bad"](RuntimeError("gone"))
    assert [line.get("message_id") for line in written.lines] == [None, "0:5", None]
    assert written.lines[2]["error"] == "gone"


def test_a_producer_that_refuses_at_once_is_logged_as_failed(log: AuditLog, written: Written) -> None:
    def full(*_arguments: Any, **_options: Any) -> None:
        raise BufferError("queue full")

    with pytest.raises(BufferError):
        ConfluentProducer(SimpleNamespace(produce=full), log, "k").produce("orders", b"v")
    assert written.events == ["sent", "answered"]


@pytest.mark.parametrize("has_methods", [True, False], ids=["confluent-kafka", "kafka-python"])
def test_records_of_both_consumers_are_logged_alike(log: AuditLog, written: Written, has_methods: bool) -> None:
    fields: dict[str, Any] = {
        "topic": "orders",
        "partition": 1,
        "offset": 9,
        "key": b"k",
        "value": b"v",
        "headers": [(HEADER, b"k:4")],
        "timestamp": (1, 1_700_000_000_000) if has_methods else 1_700_000_000_000,
    }
    record = SimpleNamespace(**{name: (lambda v=value: v) if has_methods else value for name, value in fields.items()})
    log_kafka_record(log, record, "group")
    (line,) = written.lines
    assert (line["message_id"], line["producer"], line["sequence"]) == ("1:9", "k", 4)
    assert (line["published"], line["key"], line["subscription"]) == (1_700_000_000_000_000, "k", "group")
