"""One server's half of a program: performs each step by the official client or over REST, and says how it ended.

Outcome:   "ok", or what a call answered in terms that do not depend on the server (messages by number, not by id), or
           the class of the error: the exception of the client, the status of REST.
Waiting:   every call has the client's operation timeout or HTTP_TIMEOUT_S.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from urllib.parse import quote, urlsplit

import pulsar

from interop.differential.program import Step

HTTP_TIMEOUT_S = 30
OPERATION_TIMEOUT_S = 30
NACK_DELAY_MS = 100
ACK_GROUPING_S = 0.12  # The client sends acknowledgements together, every 100 ms.
SHORT_DELAY_MS = 2_000
DELIVERY_S = 0.5  # After its delay a message has come.
REDELIVERY_S = 0.3  # What one consumer gave back has come to another one.
SEND_GAP_S = 0.004  # Messages of different steps have different times.
POLICY_S = 0.4  # Pulsar answers before a changed policy counts.
READ_TIMEOUT_MS = 3_000
MESSAGE_BYTES_MAX = 64 * 1024  # On both servers, so that chunked messages are small.
KINDS = {
    "Exclusive": pulsar.ConsumerType.Exclusive,
    "Shared": pulsar.ConsumerType.Shared,
    "Failover": pulsar.ConsumerType.Failover,
    "Key_Shared": pulsar.ConsumerType.KeyShared,
}
HINT = "hint: "
"""Begins the name of a figure that is waited for, briefly, and not compared."""
_INTERRUPTIONS = ("seek", "unload", "reset", "reset_time", "delete_sub", "delete_topic", "terminate")
_LATEST, _EARLIEST = pulsar.InitialPosition.Latest, pulsar.InitialPosition.Earliest


class NotPreparedError(Exception):
    """Apache's server did not create a namespace or a topic, or did not answer a client in time: it is too busy."""


@dataclass(slots=True)
class Received:
    number: int
    count: int
    partition: int
    key: str


@dataclass(slots=True)
class OpenConsumer:
    consumer: Any
    name: str
    sub: str
    kind: str
    take: int
    """How many messages it holds at the most; it receives no more until some are acknowledged or given back."""
    held: dict[int, Any] = field(default_factory=dict)
    fresh: list[Received] = field(default_factory=list)
    """Since the last comparison."""


@dataclass(slots=True)
class Sent:
    entry: tuple[int, int, int, int] | None
    """Partition, ledger, entry, index in the batch; None if it was refused."""
    id: Any
    before_ms: int
    """A time after all messages of earlier steps and before those of this one."""


class Admin:
    """REST over one connection that is kept open."""

    def __init__(self, url: str) -> None:
        self._host = urlsplit(url).netloc
        self._connection: http.client.HTTPConnection | None = None

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """The status, and what the body says if it is JSON."""
        data = None if body is None else json.dumps(body)
        for attempt in (1, 2):
            if self._connection is None:
                self._connection = http.client.HTTPConnection(self._host, timeout=HTTP_TIMEOUT_S)
            try:
                self._connection.request(method, f"/admin/v2/{path}", data, {"Content-Type": "application/json"})
                answer = self._connection.getresponse()
                text = answer.read()
                break
            except (OSError, http.client.HTTPException):  # The server may have closed an idle connection.
                self.close()
                if attempt == 2:
                    raise
        try:
            return answer.status, json.loads(text) if text else None
        except ValueError:
            return answer.status, text

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Side:
    """One program on one server."""

    def __init__(self, make: str, client: Any, admin: Admin, namespace: str, setup: Step) -> None:
        self.make = make
        self.client = client
        self.admin = admin
        self.namespace = namespace
        self.setup = setup
        self.partitions: int = setup.get("partitions", 0)
        self.topic = f"persistent://{namespace}/t"
        self.path = f"persistent/{namespace}/t"
        self.sent: list[Sent] = []
        self.consumers: dict[str, OpenConsumer] = {}
        self.producers: dict[str, Any] = {}
        self.has_delays = False
        self.due_s = 0.0
        """When the last message whose delay is short has been delivered, by the monotonic clock."""
        self.has_batches = False
        self.mixes_keys = False
        """Whether batches have messages of several keys: a server knows the key of the first one only."""
        self.acks_by_index = False
        self.has_client_limit = False
        """Which of several clients is the one that comes back in time is chance then: nothing may interrupt them."""
        self.divided: set[str] = set()
        """Subscriptions with several consumers: which of them has a message is the server's choice. With Failover and
        Key_Shared it is not until they come back after an interruption, in an order of their own."""
        self.seen: set[tuple[str, int]] = set()
        """Subscription and message, of all that was ever received."""
        self.is_ended = False
        self.begins_with_an_empty_ledger = False
        self.has_lost_its_end = False
        """Whether Pulsar answers that there is no last message: see intended.py. A reader takes that for the end."""
        self.has_compacted_view = False
        self.reads_compacted = False
        self.has_come_again = False
        """Whether Pulsar may have delivered again what was acknowledged, after an unload: parts of batches, and the
        compacted view. See intended.py."""

    @property
    def has_limits(self) -> bool:
        """Of unacknowledged messages."""
        return bool(self.setup.get("unacked_per_consumer") or self.setup.get("unacked_per_sub"))

    # --- beginning and end --------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self._must("PUT", f"namespaces/{self.namespace}", {"replication_clusters": ["standalone"]})
        retention = self.setup.get("retention", -1)
        policies: list[tuple[str, str, Any]] = [
            ("POST", "retention", {"retentionTimeInMinutes": retention, "retentionSizeInMB": retention})
        ]
        if self.setup.get("dedup"):
            policies.append(("POST", "deduplication", True))
        if limit := self.setup.get("unacked_per_consumer"):
            policies.append(("POST", "maxUnackedMessagesPerConsumer", limit))
        if limit := self.setup.get("unacked_per_sub"):
            policies.append(("POST", "maxUnackedMessagesPerSubscription", limit))
        for method, policy, value in policies:
            self._must(method, f"namespaces/{self.namespace}/{policy}", value)
        if self.partitions:
            self._must("PUT", f"{self.path}/partitions", self.partitions)
        else:
            self._must("PUT", self.path, None)

    def _must(self, method: str, path: str, body: Any) -> None:
        status, answer = self.admin.call(method, path, body)
        if status >= 300:
            raise NotPreparedError(f"{self.make}: {method} {path} answered {status}: {answer}")

    def end(self) -> None:
        """Whatever state it is in; errors of closing are no finding."""
        for name in list(self.consumers):
            self._quietly(self.consumers.pop(name).consumer.close)
        for name in list(self.producers):
            self._quietly(self.producers.pop(name).close)
        kind = "/partitions" if self.partitions else ""
        self._quietly(lambda: self.admin.call("DELETE", f"{self.path}{kind}?force=true"))
        self._quietly(lambda: self.admin.call("DELETE", f"namespaces/{self.namespace}?force=true"))

    def _quietly(self, do: Callable[[], object]) -> None:
        with contextlib.suppress(pulsar.PulsarException, OSError, http.client.HTTPException):
            do()

    # --- steps --------------------------------------------------------------------------------------------------------

    def perform(self, step: Step) -> Any:
        if step.verb in _INTERRUPTIONS:
            if self.has_client_limit and max(len(self.consumers), len(self.producers)) > 1:
                return "nothing"
            subs = [consumer.sub for consumer in self.consumers.values()]
            self.divided.update(sub for sub in subs if subs.count(sub) > 1)
        try:
            return getattr(self, f"do_{step.verb}")(step)
        except pulsar.PulsarException as error:
            if isinstance(error, pulsar.Timeout) and self.make == "Apache":
                raise NotPreparedError(f"Apache: {step} was not answered in time") from None
            return type(error).__name__
        except RuntimeError as error:  # As for a seek that fails on several partitions: the C++ client answers twice.
            return f"the client failed: {error}"

    def message(self, step: Step, name: str = "m") -> Sent | None:
        stored = [sent for sent in self.sent if sent.entry is not None]
        return stored[step.arguments[name] % len(stored)] if stored else None

    def number_of(self, entry: tuple[int, int, int, int]) -> int | str:
        """Of the message with this id; or a word that says where the id is."""
        for number, sent in enumerate(self.sent):
            if sent.entry == entry:
                return number
        if entry[1:3] == (-1, -1) or entry[1] in (2**64 - 1, -1):
            return "none"
        same_entry = [number for number, sent in enumerate(self.sent) if sent.entry and sent.entry[:3] == entry[:3]]
        if same_entry and entry[3] == -1:  # Compacted, a batch of one message is none any more.
            return max(same_entry)
        if same_entry:
            return f"in the entry of {same_entry}, index {entry[3]}"
        before = {sent.entry[:3] for sent in self.sent if sent.entry is not None and sent.entry[:3] <= entry[:3]}
        return f"unknown, after {len(before)} entries"

    # producing

    def do_send(self, step: Step) -> Any:
        before_ms = int(time.time() * 1000)
        time.sleep(SEND_GAP_S)
        first, count = len(self.sent), step.get("n", 1)
        self.sent.extend(Sent(None, None, before_ms) for _ in range(count))
        producer = self._producer(step)
        outcomes: list[Any] = [None] * count
        for offset in range(count):
            self._send(producer, step, first, offset, outcomes)
        producer.flush()
        deadline = time.monotonic() + OPERATION_TIMEOUT_S
        while None in outcomes and time.monotonic() < deadline:
            time.sleep(0.001)
        for offset, (result, message_id) in enumerate(outcome or ("no answer", None) for outcome in outcomes):
            if result == "Ok":
                sent = self.sent[first + offset]
                sent.id = message_id
                where = (
                    message_id.partition(),
                    message_id.ledger_id(),
                    message_id.entry_id(),
                    message_id.batch_index(),
                )
                sent.entry = where if message_id.ledger_id() not in (-1, 2**64 - 1) else None
        time.sleep(SEND_GAP_S)
        self.begins_with_an_empty_ledger &= all(sent.entry is None for sent in self.sent[first:])
        return [
            (result, self.sent[first + offset].entry is not None)
            for offset, (result, _) in enumerate(outcome or ("no answer", None) for outcome in outcomes)
        ]

    def _send(self, producer: Any, step: Step, first: int, offset: int, outcomes: list[Any]) -> None:
        keys = step.get("keys")
        options: dict[str, Any] = {}
        if keys:
            options["partition_key"] = keys[offset % len(keys)]
        if step.get("delay"):
            self.has_delays = True
            if step.get("delay") <= SHORT_DELAY_MS:
                self.due_s = time.monotonic() + step.get("delay") / 1000 + DELIVERY_S
            options["deliver_after"] = timedelta(milliseconds=step.get("delay"))
        if step.get("seq") is not None:
            options["sequence_id"] = step.get("seq") + offset
        body = str(first + offset).encode()
        if step.get("size"):
            body = body + b" " * step.get("size")
        if step.get("tombstone"):
            body = b""

        def done(result: Any, message_id: Any) -> None:
            outcomes[offset] = (result.name, message_id)

        producer.send_async(body, done, properties={"n": str(first + offset)}, **options)

    def _producer(self, step: Step) -> Any:
        name = step.get("p", "p0")
        producer = self.producers.get(name)
        if producer is None:
            batch, chunk = step.get("batch", False), step.get("chunk", False)
            access = step.get("access", "Shared")
            self.has_batches |= bool(batch)
            self.mixes_keys |= batch is True and not chunk
            producer = self.client.create_producer(
                self.topic,
                producer_name=name,
                batching_enabled=bool(batch) and not chunk,
                batching_max_messages=1000,
                batching_max_publish_delay_ms=5_000,
                batching_type=pulsar.BatchingType.KeyBased if batch == "keys" else pulsar.BatchingType.Default,
                chunking_enabled=chunk,
                send_timeout_millis=OPERATION_TIMEOUT_S * 1000,
                message_routing_mode=pulsar.PartitionsRoutingMode.CustomPartition,
                message_router=_route,
                access_mode=getattr(pulsar.ProducerAccessMode, access),
            )
            if access == "ExclusiveWithFencing":
                self._close_producers()
            self.producers[name] = producer
        return producer

    def _close_producers(self) -> None:
        """What a producer sends after it was fenced, or after its partition was deleted, fails with the timeout, on
        both servers."""
        for name in list(self.producers):
            self._quietly(self.producers.pop(name).close)

    def do_close_producer(self, step: Step) -> Any:
        producer = self.producers.pop(step.get("p"), None)
        if producer is not None:
            producer.close()
        return "ok"

    # consuming

    def do_subscribe(self, step: Step) -> Any:
        name = step.get("c")
        if name in self.consumers:
            return "ok"
        consumer = self.client.subscribe(
            self.topic,
            step.get("sub"),
            KINDS[step.get("kind")],
            consumer_name=name,
            receiver_queue_size=step.get("queue", 1000),
            negative_ack_redelivery_delay_ms=NACK_DELAY_MS,
            initial_position=_EARLIEST if step.get("start", "earliest") == "earliest" else _LATEST,
            is_read_compacted=step.get("compacted", False),
            batch_index_ack_enabled=step.get("by_index", False),
            start_message_id_inclusive=step.get("inclusive", False),
        )
        self.acks_by_index |= step.get("by_index", False)
        self.reads_compacted |= step.get("compacted", False)
        take = step.get("take", 10**6)
        if step.get("kind") == "Shared" and any(other.sub == step.get("sub") for other in self.consumers.values()):
            self.divided.add(step.get("sub"))
        self.consumers[name] = OpenConsumer(consumer, name, step.get("sub"), step.get("kind"), take)
        return "ok"

    def do_close(self, step: Step) -> Any:
        found = self.consumers.pop(step.get("c"), None)
        if found is not None:
            found.consumer.close()
        return "ok"

    def do_unsubscribe(self, step: Step) -> Any:
        found = self.consumers.get(step.get("c"))
        if found is not None:
            found.consumer.unsubscribe()
            del self.consumers[step.get("c")]
        return "ok"

    def take(self) -> bool:
        """Whether a consumer received something."""
        found = False
        for consumer in list(self.consumers.values()):
            while len(consumer.held) < consumer.take and self._take_one(consumer):
                found = True
        return found

    def _take_one(self, consumer: OpenConsumer) -> bool:
        try:
            message = consumer.consumer.receive(1)
        except pulsar.PulsarException:
            return False
        number = int(message.properties().get("n", -1))
        partition = message.message_id().partition()
        consumer.held[number] = message
        self.seen.add((consumer.sub, number))
        consumer.fresh.append(Received(number, message.redelivery_count(), partition, message.partition_key()))
        return True

    def is_connected(self) -> bool:
        return all(found.consumer.is_connected() for found in self.consumers.values()) and all(
            producer.is_connected() for producer in self.producers.values()
        )

    def _chosen(self, step: Step) -> list[tuple[OpenConsumer, int]]:
        """Messages of a subscription that its consumers hold, by number; of one that came again, all who hold it."""
        consumers = [consumer for consumer in self.consumers.values() if consumer.sub == step.get("sub")]
        numbers = sorted({number for consumer in consumers for number in consumer.held})
        chosen = {
            "all": numbers,
            "first": numbers[:1],
            "last": numbers[-1:],
            "even": numbers[::2],
            "odd": numbers[1::2],
            "half": numbers[: (len(numbers) + 1) // 2],
        }[step.get("which", "all")]
        return [(consumer, number) for number in chosen for consumer in consumers if number in consumer.held]

    def do_ack(self, step: Step) -> Any:
        outcomes = {}
        for consumer, number in self._chosen(step):
            outcomes[number] = _outcome(lambda c=consumer, n=number: c.consumer.acknowledge(c.held[n]))
            del consumer.held[number]
        time.sleep(ACK_GROUPING_S)
        return outcomes

    def do_ack_to(self, step: Step) -> Any:
        chosen = self._chosen(step)
        if not chosen:
            return "nothing"
        consumer, number = chosen[-1]
        outcome = _outcome(lambda: consumer.consumer.acknowledge_cumulative(consumer.held[number]))
        if outcome == "ok":
            partition = consumer.held[number].message_id().partition()
            for other in [n for n in consumer.held if n <= number]:
                if consumer.held[other].message_id().partition() == partition:
                    del consumer.held[other]
        time.sleep(ACK_GROUPING_S)
        return outcome

    def do_ack_id(self, step: Step) -> Any:
        """By the id it was sent with, received or not."""
        found, sent = self.consumers.get(step.get("c")), self.message(step)
        if found is None or sent is None:
            return "nothing"
        call = found.consumer.acknowledge_cumulative if step.get("cumulative") else found.consumer.acknowledge
        outcome = _outcome(lambda: call(sent.id))
        time.sleep(ACK_GROUPING_S)
        return outcome

    def do_nack(self, step: Step) -> Any:
        """One message of each entry, and one in all where everything comes again: the client gives entries back, at
        intervals, and two that fall into different ones would come twice."""
        given: set[Any] = set()
        for consumer, number in self._chosen(step):
            message = consumer.held.pop(number)
            found = message.message_id()
            entry = (found.partition(), found.ledger_id(), found.entry_id())
            place = entry[0] if consumer.kind in ("Exclusive", "Failover") else (consumer.name, entry)
            if place not in given:
                given.add(place)
                consumer.consumer.negative_acknowledge(message)
        time.sleep(NACK_DELAY_MS / 1000 * 1.4)
        return "ok"

    def do_redeliver(self, step: Step) -> Any:
        """One consumer after the other: another one may get what the first gave back, and gives it back again."""
        time.sleep(max(0.0, self.due_s - time.monotonic()))  # What is delivered at this moment comes once or twice.
        consumers = [found for found in self.consumers.values() if found.sub == step.get("sub")]
        for found in consumers:
            found.held.clear()
            found.consumer.redeliver_unacknowledged_messages()
            if len(consumers) > 1:
                time.sleep(REDELIVERY_S)
        return "ok"

    def do_seek(self, step: Step) -> Any:
        found = self.consumers.get(step.get("c"))
        if found is None:
            return "nothing"
        to = step.get("to")
        if to == "earliest":
            place: Any = pulsar.MessageId.earliest
        elif to == "latest":
            place = pulsar.MessageId.latest
        else:
            sent = self.message(step)
            if sent is None:
                return "nothing"
            place = sent.before_ms if to == "time" else self._first_of_entry(sent).id
        consumers = [consumer for consumer in self.consumers.values() if consumer.sub == found.sub]
        is_refused = False
        try:
            found.consumer.seek(place)
        except pulsar.OperationNotSupported:  # By the client: a message id for several partitions. Nothing comes again.
            is_refused = True
            raise
        finally:
            for consumer in () if is_refused else consumers:
                consumer.held.clear()
        if len(consumers) > 1:
            time.sleep(REDELIVERY_S)  # The others are disconnected, and drop what they have not handed over.
        return "ok"

    def _first_of_entry(self, sent: Sent) -> Sent:
        """Only the consumer that sought would drop the messages before it in its batch."""
        assert sent.entry is not None
        return next(other for other in self.sent if other.entry is not None and other.entry[:3] == sent.entry[:3])

    def do_last_id(self, step: Step) -> Any:
        found = self.consumers.get(step.get("c"))
        if found is None or self.has_lost_its_end:
            return "nothing"
        last = found.consumer.get_last_message_id()
        return self.number_of((last.partition(), last.ledger_id(), last.entry_id(), last.batch_index()))

    def do_read(self, step: Step) -> Any:
        """A reader reads all there is."""
        if self.has_lost_its_end:
            return "nothing"
        start = step.get("start", "earliest")
        if start == "message":
            sent = self.message(step)
            if sent is None:
                return "nothing"
            place = sent.id
        else:
            place = pulsar.MessageId.earliest if start == "earliest" else pulsar.MessageId.latest
        reader = self.client.create_reader(
            self.topic,
            place,
            receiver_queue_size=step.get("queue", 1000),
            start_message_id_inclusive=step.get("inclusive", False),
            is_read_compacted=step.get("compacted", False),
        )
        try:
            if step.get("seek"):
                sent = self.message(step)
                if sent is not None:
                    reader.seek(sent.before_ms if step.get("seek") == "time" else sent.id)
            return self._read_all(reader)
        finally:
            reader.close()

    def _read_all(self, reader: Any) -> Any:
        found: dict[int, list[Any]] = {}
        while reader.has_message_available():
            try:
                message = reader.read_next(READ_TIMEOUT_MS)
            except pulsar.Timeout:
                return found, "has a message, and does not get it"
            partition = message.message_id().partition()
            found.setdefault(partition, []).append(int(message.properties().get("n", -1)))
        return found

    # administration

    def rest(self, method: str, path: str, body: Any = None) -> int:
        return self.admin.call(method, f"{self.path}/{path}", body)[0]

    def do_skip(self, step: Step) -> Any:
        if not self._has_sub(step):
            return "nothing"
        return self.rest("POST", f"subscription/{step.get('sub')}/skip/{step.get('n', 1)}")

    def do_skip_all(self, step: Step) -> Any:
        status = self.rest("POST", f"subscription/{step.get('sub')}/skip_all")
        if status < 300 and step.get("sub") in self.divided:
            for consumer in self.consumers.values():
                if consumer.sub == step.get("sub"):
                    consumer.held.clear()  # Which of them has a message is chance, and none comes again.
        return status

    def do_expire(self, step: Step) -> Any:
        if step.get("seconds") == 1:
            time.sleep(2.1)  # All messages are older than that on both servers.
        return self.rest("POST", f"subscription/{step.get('sub')}/expireMessages/{step.get('seconds')}")

    def do_expire_to(self, step: Step) -> Any:
        return self._at_message(step, "POST", f"subscription/{step.get('sub')}/expireMessages")

    def do_reset(self, step: Step) -> Any:
        """An id of another partition is before or after all messages of this one: the numbers of ledgers are chance."""
        sent = self.message(step)
        if sent is None or sent.entry is None or (step.get("on") is not None and self._is_of_another(step, sent.entry)):
            return "nothing"
        return self._at_message(step, "POST", f"subscription/{step.get('sub')}/resetcursor")

    def _is_of_another(self, step: Step, entry: tuple[int, int, int, int]) -> bool:
        return bool(self.partitions) and entry[0] != step.get("on") % self.partitions

    def do_reset_time(self, step: Step) -> Any:
        sent = self.message(step)
        if sent is None:
            return "nothing"
        return self.rest("POST", f"subscription/{step.get('sub')}/resetcursor/{sent.before_ms}")

    def _at_message(self, step: Step, method: str, path: str) -> Any:
        sent = self.message(step)
        if sent is None or sent.entry is None:
            return "nothing"
        partition, ledger, entry, index = sent.entry
        body = {"ledgerId": ledger, "entryId": entry + step.get("shift", 0), "partitionIndex": partition}
        if step.get("index"):
            body["batchIndex"] = index
        if step.get("excluded"):
            body["excluded"] = True
        if self.partitions and step.get("on") is not None:  # One partition, perhaps another than the message's.
            name = f"persistent/{self.namespace}/t-partition-{step.get('on') % self.partitions}"
            return self.admin.call(method, f"{name}/{path}", body)[0]
        return self.rest(method, path, body)

    def do_create_sub(self, step: Step) -> Any:
        at = step.get("at", "earliest")
        if at == "message":
            return self._at_message(step, "PUT", f"subscription/{step.get('sub')}")
        number = -1 if at == "earliest" else 2**63 - 1
        body = {"ledgerId": number, "entryId": number, "partitionIndex": -1}
        return self.rest("PUT", f"subscription/{step.get('sub')}", body)

    def do_delete_sub(self, step: Step) -> Any:
        force = str(step.get("force", False)).lower()
        return self.rest("DELETE", f"subscription/{step.get('sub')}?force={force}")

    def do_delete_topic(self, step: Step) -> Any:
        kind = "/partitions" if self.partitions else ""
        force = str(step.get("force", False)).lower()
        status = self.admin.call("DELETE", f"{self.path}{kind}?force={force}")[0]
        if self.partitions and status < 300:
            self._close_producers()
        return status

    def do_unload(self, _step: Step) -> Any:
        self.has_come_again |= self.has_batches and self.acks_by_index
        self.has_come_again |= self.has_compacted_view and self.reads_compacted
        self.begins_with_an_empty_ledger = True
        return self.rest("PUT", "unload")

    def do_terminate(self, _step: Step) -> Any:
        kind = "/partitions" if self.partitions else ""
        self.is_ended = True
        self.has_lost_its_end |= self.begins_with_an_empty_ledger
        return self.rest("POST", f"terminate{kind}")

    def do_compact(self, _step: Step) -> Any:
        self.has_compacted_view = True
        status = self.rest("PUT", "compaction")
        deadline = time.monotonic() + 20
        while status < 300 and time.monotonic() < deadline:
            code, answer = self.admin.call("GET", f"{self.path}/compaction")
            if code >= 300 or answer["status"] != "RUNNING":
                return status, code, answer["status"] if code < 300 else ""
            time.sleep(0.02)
        return status

    def _has_sub(self, step: Step) -> bool:
        """Pulsar creates a subscription that is only looked at."""
        status, answer = self.admin.call("GET", f"{self.path}/subscriptions")
        return status == 200 and step.get("sub") in answer

    def do_peek(self, step: Step) -> Any:
        if not self._has_sub(step):
            return "nothing"
        path = f"{self.path}/subscription/{step.get('sub')}/position/{step.get('n', 1)}"
        status, answer = self.admin.call("GET", path)
        return status, _body_of(answer) if status == 200 else ""

    def do_examine(self, step: Step) -> Any:
        path = f"{self.path}/examinemessage?initialPosition={step.get('start')}&messagePosition={step.get('n', 1)}"
        status, answer = self.admin.call("GET", path)
        return status, _body_of(answer) if status == 200 else ""

    def do_get_message(self, step: Step) -> Any:
        sent = self.message(step)
        if sent is None or sent.entry is None or self.partitions:
            return "nothing"
        status, answer = self.admin.call("GET", f"{self.path}/ledger/{sent.entry[1]}/entry/{sent.entry[2]}")
        return status, _body_of(answer) if status == 200 else ""

    def do_admin_last_id(self, _step: Step) -> Any:
        if self.has_lost_its_end:
            return "nothing"
        status, answer = self.admin.call("GET", f"{self.path}/lastMessageId")
        if status != 200:
            return status
        where = (answer.get("partitionIndex", -1), answer["ledgerId"], answer["entryId"], -1)
        known = {sent.entry[:3] for sent in self.sent if sent.entry is not None}
        before = {entry for entry in known if entry[1:3] <= where[1:3]}
        return status, "none" if where[2] == -1 else len(before), "batchIndex" in answer and answer["batchIndex"] >= 0

    def do_analyze(self, step: Step) -> Any:
        path = f"{self.path}/subscription/{step.get('sub')}/analyzeBacklog"
        status, answer = self.admin.call("POST", path)
        if status != 200:
            return status
        return status, {name: answer[name] for name in ("entries", "messages", "markerMessages", "aborted")}

    def do_more_partitions(self, _step: Step) -> Any:
        if not self.partitions:
            return "nothing"
        status = self.rest("POST", "partitions", self.partitions + 1)
        if status < 300:
            self.partitions += 1
        return status

    def do_list_subs(self, _step: Step) -> Any:
        status, answer = self.admin.call("GET", f"{self.path}/subscriptions")
        return status, sorted(answer) if status == 200 else ""

    def do_policy(self, step: Step) -> Any:
        self.has_client_limit |= str(step.get("name")).startswith(("maxConsumers", "maxProducers"))
        path = f"namespaces/{self.namespace}/{step.get('name')}"
        status = self.admin.call("POST", path, step.get("value"))[0]
        time.sleep(POLICY_S)
        return status

    def do_clear_namespace(self, step: Step) -> Any:
        sub = f"/{step.get('sub')}" if step.get("sub") else ""
        return self.admin.call("POST", f"namespaces/{self.namespace}/clearBacklog{sub}")[0]

    def do_unsubscribe_namespace(self, step: Step) -> Any:
        return self.admin.call("POST", f"namespaces/{self.namespace}/unsubscribe/{step.get('sub')}")[0]

    def do_finish(self, _step: Step) -> Any:
        """Acknowledges what is held; pair.py repeats it until nothing comes."""
        for consumer in self.consumers.values():
            for message in consumer.held.values():
                consumer.consumer.acknowledge(message)
            consumer.held.clear()
        return "ok"

    def do_wait(self, step: Step) -> Any:
        time.sleep(step.get("ms") / 1000)
        return "ok"

    # --- statistics ---------------------------------------------------------------------------------------------------

    def statistics(self) -> Any:
        """What both servers should say alike, topic by topic."""
        names = [f"t-partition-{number}" for number in range(self.partitions)] if self.partitions else ["t"]
        return {name: self._topic_statistics(name) for name in names}

    def _topic_statistics(self, topic: str) -> Any:
        path = f"persistent/{self.namespace}/{quote(topic)}"
        status, stats = self.admin.call("GET", f"{path}/stats?getPreciseBacklog=true")
        if status != 200:
            return status
        status, internal = self.admin.call("GET", f"{path}/internalStats")
        if status != 200:
            return status
        cursors = internal["cursors"]
        return {
            "publishers": len(stats["publishers"]),
            "messages in": stats["msgInCounter"],
            "entries": internal["numberOfEntries"] if self.setup.get("retention", -1) else "trimmed now and then",
            "state": internal["state"],
            "subscriptions": {
                name: self._subscription_statistics(topic, subscription, cursors.get(name))
                for name, subscription in stats["subscriptions"].items()
                if subscription["isDurable"] and name != "__compaction"
            },
        }

    def _subscription_statistics(self, topic: str, stats: Any, cursor: Any) -> Any:
        consumers = stats["consumers"]
        names = sorted(consumer["consumerName"] for consumer in consumers)
        is_counted = not (self.has_batches and self.acks_by_index)  # Pulsar miscounts what is left of a batch.
        if self._is_left_by_chance(is_counted=is_counted, has_consumers=bool(consumers)):
            return {"consumers": names}
        kind = stats["type"] if consumers else ""
        found = {
            "kind": kind,
            "backlog": stats["msgBacklog"],
            "blocked": stats["blockedSubscriptionOnUnackedMsgs"],
            "consumers": names,
            "expired": stats["totalMsgExpired"],
        }
        waits_for_others = kind == "Key_Shared" and len(consumers) > 1  # Pulsar has not looked at what does so.
        found[HINT + "delayed" if waits_for_others else "delayed"] = stats["msgDelayed"]
        found["unacked" if is_counted else HINT + "unacked"] = stats["unackedMessages"]
        if is_counted and (kind != "Shared" or len(consumers) == 1):
            found["of consumers"] = sorted(
                (consumer["consumerName"], consumer["unackedMessages"], consumer["blockedConsumerOnUnackedMsgs"])
                for consumer in consumers
            )
        if kind == "Failover":
            found["active"] = stats["activeConsumerName"]
        if cursor is not None:
            found["mark-delete"] = self._entries_up_to(topic, cursor["markDeletePosition"])
        return found

    def _is_left_by_chance(self, *, is_counted: bool, has_consumers: bool) -> bool:
        """Whether what a subscription has left follows from intended differences: Pulsar stops at a limit by a wrong
        count, and consumers that have left had got more than a limit allows, or what was acknowledged once more."""
        if has_consumers:
            return self.has_limits and not is_counted
        return self.has_limits or self.has_come_again

    def _entries_up_to(self, topic: str, position: str) -> int:
        ledger, entry = map(int, position.split(":"))
        partition = int(topic.rpartition("-")[2]) if self.partitions else -1
        known = {sent.entry[:3] for sent in self.sent if sent.entry is not None}
        return len({one for one in known if one[0] == partition and one[1:3] <= (ledger, entry)})


def _route(message: Any, partitions: int) -> int:
    """By key, else by number: the same on both servers."""
    key = message.partition_key()
    return (ord(key[0]) if key else int(message.properties()["n"])) % partitions


def _outcome(do: Callable[[], object]) -> str:
    try:
        do()
    except pulsar.PulsarException as error:
        return type(error).__name__
    return "ok"


def _body_of(answer: Any) -> Any:
    """The number that begins a message's payload."""
    text = answer if isinstance(answer, bytes) else str(answer).encode()
    return text[:20].split(b" ")[0].decode(errors="replace")
