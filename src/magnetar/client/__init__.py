"""An asyncio client of the Pulsar protocol: for the command line, for Spark, for tests, and for the simulator.

* `client.py` has PulsarClient: where to begin.
* `client/producing/producer.py`, `client/consuming/consumer.py` have what an application holds, a producer's part
  for each partition included; `client/consuming/topic_consumer.py` has a consumer's.
* `client/producing/sender.py`, `client/consuming/subscriber.py` exchange commands with the broker.
* `client/producing/outgoing.py`, `client/consuming/incoming.py`, `client/consuming/acknowledgements.py` work
  without a network.
* `client/consuming/raw_reader.py` reads whole entries, for Spark.
* `attachment.py` keeps a producer or consumer attached to the broker that serves its topic.
* `brokers.py` has connections and lookups; `connection.py` is one of them, with its open requests.
* `values.py` has messages and settings.
* `http.py` is a client of brokers' HTTP ports.

It needs only an event loop and `Entropy`, so that it runs unchanged where time and network are simulated.

Read next: docs/pulsar-protocol.md
"""

from magnetar.client.client import PulsarClient
from magnetar.client.consuming.consumer import Consumer, Reader
from magnetar.client.producing.producer import Producer
from magnetar.client.values import (
    EARLIEST,
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    LATEST,
    SHARED,
    ClientOptions,
    ConsumerOptions,
    Message,
    MessageId,
    ProducerOptions,
)

__all__ = [
    "EARLIEST",
    "EXCLUSIVE",
    "FAILOVER",
    "KEY_SHARED",
    "LATEST",
    "SHARED",
    "ClientOptions",
    "Consumer",
    "ConsumerOptions",
    "Message",
    "MessageId",
    "Producer",
    "ProducerOptions",
    "PulsarClient",
    "Reader",
]
