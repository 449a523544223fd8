"""Official clients of Pulsar and Kafka that log what they do: each is used as the client that it wraps.

Pulsar has wrappers of pulsar-client's client, and its producers, consumers and readers. The wrapper chooses sequence
ids, since the client does not report its own, and continues after the last one that the broker knows. Kafka has
wrappers of confluent-kafka's and kafka-python's producers, by their two kinds of callbacks; records of either consumer.
Kafka has no sequence that a consumer can see, so a header carries it. None of these packages is imported; only the
attributes of their objects are used.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from magnetar.testing.audit_log import HEADER, OK, AuditLog, mark_of, parse_mark

FAILED: Final = "failed"
READER: Final = "(reader)"  # What the log has for a subscription when a reader reads.


class _Sequence:
    """Numbers the messages of one producer. A sender holds `turn` from taking a number to sending, for their order."""

    def __init__(self, after: int) -> None:
        self._last = after
        self.turn = threading.RLock()  # A callback may send, and come from within a send.

    def next(self) -> int:
        self._last += 1
        return self._last


class _Wrapper:
    """What is not wrapped is the client's own."""

    def __init__(self, inner: Any, log: AuditLog) -> None:
        self._inner, self._log = inner, log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


# --- Pulsar -----------------------------------------------------------------------------------------------------------


class PulsarClient(_Wrapper):
    """Wraps `pulsar.Client`: producers, consumers and readers that are made with it log what they do."""

    def create_producer(self, *arguments: Any, **options: Any) -> PulsarProducer:
        return PulsarProducer(self._inner.create_producer(*arguments, **options), self._log)

    def subscribe(self, *arguments: Any, **options: Any) -> PulsarConsumer:
        return PulsarConsumer(self._inner.subscribe(*arguments, **options), self._log)

    def create_reader(self, *arguments: Any, **options: Any) -> PulsarConsumer:
        return PulsarConsumer(self._inner.create_reader(*arguments, **options), self._log)


class PulsarProducer(_Wrapper):
    """Wraps `pulsar.Producer`."""

    def __init__(self, producer: Any, log: AuditLog, *, marked: bool = True) -> None:
        """`marked`: messages get a property by which consumers know them. Without it an audit needs the topic itself,
        or recognises only messages whose acknowledgement came."""
        super().__init__(producer, log)
        self._marked = marked
        self._topic, self._name = producer.topic(), producer.producer_name()
        self._sequence = _Sequence(max(producer.last_sequence_id(), 0))  # The client takes a 0 for "none given".

    def send(self, content: Any, properties: dict[str, str] | None = None, **options: Any) -> Any:
        with self._sequence.turn:
            sequence = self._begin(content, options)
            marked = self._properties(properties, sequence)
            try:
                message_id = self._inner.send(content, marked, sequence_id=sequence, **options)
            except Exception as error:
                self._end(sequence, FAILED, None, type(error).__name__)
                raise
        self._end(sequence, OK, message_id)
        return message_id

    def send_async(
        self,
        content: Any,
        callback: Callable[[Any, Any], None] | None = None,
        properties: dict[str, str] | None = None,
        **options: Any,
    ) -> None:
        with self._sequence.turn:
            sequence = self._begin(content, options)

            def on_answer(result: Any, message_id: Any) -> None:
                self._on_answer(sequence, result, message_id)
                if callback is not None:
                    callback(result, message_id)

            marked = self._properties(properties, sequence)
            self._inner.send_async(content, on_answer, marked, sequence_id=sequence, **options)

    def _on_answer(self, sequence: int, result: Any, message_id: Any) -> None:
        if getattr(result, "name", str(result)) == "Ok":
            self._end(sequence, OK, message_id)
        else:
            self._end(sequence, FAILED, None, str(result))

    def _begin(self, content: Any, options: dict[str, Any]) -> int:
        sequence = self._sequence.next()
        value = content if isinstance(content, bytes) else None  # Encoded by a schema, its bytes are not known here.
        self._log.sent(self._topic, self._name, sequence, key=options.get("partition_key"), value=value)
        return sequence

    def _end(self, sequence: int, outcome: str, message_id: Any, error: str | None = None) -> None:
        place = pulsar_message_id(message_id) if message_id is not None else None
        self._log.answered(self._topic, self._name, sequence, outcome=outcome, message_id=place, error=error)

    def _properties(self, given: dict[str, str] | None, sequence: int) -> dict[str, str] | None:
        return {**(given or {}), HEADER: mark_of(self._name, sequence)} if self._marked else given


class PulsarConsumer(_Wrapper):
    """Wraps `pulsar.Consumer` and `pulsar.Reader`: what `receive`, `batch_receive` and `read_next` return is logged."""

    def __init__(self, consumer: Any, log: AuditLog) -> None:
        super().__init__(consumer, log)
        self._subscription = consumer.subscription_name() if hasattr(consumer, "subscription_name") else READER

    def receive(self, timeout_millis: int | None = None) -> Any:
        return self._logged(self._inner.receive(timeout_millis))

    def read_next(self, timeout_millis: int | None = None) -> Any:
        return self._logged(self._inner.read_next(timeout_millis))

    def batch_receive(self) -> list[Any]:
        return [self._logged(message) for message in self._inner.batch_receive()]

    def _logged(self, message: Any) -> Any:
        producer, sequence = parse_mark(message.properties().get(HEADER))
        self._log.received(
            message.topic_name(),
            self._subscription,
            pulsar_message_id(message.message_id()),
            producer=producer or message.producer_name(),
            sequence=sequence,
            key=message.partition_key() or None,
            value=message.data(),
            published_ms=message.publish_timestamp(),
            redelivery_count=message.redelivery_count(),
        )
        return message


def pulsar_message_id(message_id: Any) -> str:
    """`ledger:entry:partition:batch`, as format("magnetar") has it."""
    numbers = (message_id.ledger_id(), message_id.entry_id(), message_id.partition(), message_id.batch_index())
    return ":".join(map(str, numbers))


# --- Kafka ------------------------------------------------------------------------------------------------------------


class _KafkaProducer(_Wrapper):
    def __init__(self, producer: Any, log: AuditLog, name: str) -> None:
        super().__init__(producer, log)
        self._name = name
        self._sequence = _Sequence(0)

    @contextlib.contextmanager
    def _sending(self, topic: str, value: bytes | None, key: bytes | str | None) -> Iterator[int]:
        """Logs what is sent inside as the message of this number, and a call that raises instead of calling back."""
        with self._sequence.turn:
            sequence = self._sequence.next()
            self._log.sent(topic, self._name, sequence, key=_text(key), value=value)
            try:
                yield sequence
            except Exception as error:
                self._answered(topic, sequence, None, error)
                raise

    def _answered(self, topic: str, sequence: int, place: str | None, error: Any) -> None:
        outcome, why = (OK, None) if error is None else (FAILED, str(error))
        self._log.answered(topic, self._name, sequence, outcome=outcome, message_id=place, error=why)

    def _marked(self, headers: Iterable[tuple[str, bytes]] | None, sequence: int) -> list[tuple[str, bytes]]:
        return [*(headers or ()), (HEADER, mark_of(self._name, sequence).encode())]


class ConfluentProducer(_KafkaProducer):
    """Wraps `confluent_kafka.Producer`: the answer comes to `on_delivery(error, message)`."""

    def produce(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | str | None = None,
        *args: Any,
        headers: Iterable[tuple[str, bytes]] | None = None,
        on_delivery: Callable[[Any, Any], None] | None = None,
        **options: Any,
    ) -> None:
        with self._sending(topic, value, key) as sequence:

            def answered(error: Any, message: Any) -> None:
                place = f"{message.partition()}:{message.offset()}" if error is None else None
                self._answered(topic, sequence, place, error)
                if on_delivery is not None:
                    on_delivery(error, message)

            marked = self._marked(headers, sequence)
            self._inner.produce(topic, value, key, *args, headers=marked, on_delivery=answered, **options)


class KafkaPythonProducer(_KafkaProducer):
    """Wraps `kafka.KafkaProducer`: the answer comes to the callbacks of the future that `send` returns."""

    def send(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        headers: Iterable[tuple[str, bytes]] | None = None,
        **options: Any,
    ) -> Any:
        with self._sending(topic, value, key) as sequence:
            marked = self._marked(headers, sequence)
            future = self._inner.send(topic, value=value, key=key, headers=marked, **options)
        future.add_callback(lambda place: self._answered(topic, sequence, f"{place.partition}:{place.offset}", None))
        future.add_errback(lambda error: self._answered(topic, sequence, None, error))
        return future


def log_kafka_record(log: AuditLog, record: Any, group: str) -> None:
    """What a Kafka consumer of that group received: a record of kafka-python, or a message of confluent-kafka."""
    headers = dict(_field(record, "headers") or ())
    producer, sequence = parse_mark(headers.get(HEADER))
    timestamp = _field(record, "timestamp")
    log.received(
        _field(record, "topic"),
        group,
        f"{_field(record, 'partition')}:{_field(record, 'offset')}",
        producer=producer,
        sequence=sequence,
        key=_text(_field(record, "key")),
        value=_field(record, "value"),
        published_ms=timestamp[1] if isinstance(timestamp, tuple) else timestamp,
    )


def _field(record: Any, name: str) -> Any:
    """confluent-kafka's messages have methods, kafka-python's records have attributes."""
    value = getattr(record, name)
    return value() if callable(value) else value


def _text(key: bytes | str | None) -> str | None:
    return key.decode("utf-8", "replace") if isinstance(key, bytes) else key
