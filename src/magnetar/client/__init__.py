"""An asyncio client of the Pulsar protocol: for the command line, for tests, and for the simulator.

    client.py          PulsarClient: what to begin with
    producer.py        consumer.py   reader.py: what an application holds
    topic_producer.py  topic_consumer.py: their parts, one for each partition
    sender.py          receiver.py: what those say to the broker, and hear from it
    attachment.py      stays with the broker that serves the topic, wherever it goes
    brokers.py         connections and lookups;   connection.py: one of them;   requests.py: what it was asked
    message.py         options.py: values
    outgoing.py        incoming.py   pending_sends.py   ack_state.py   inbox.py: the parts without a network

It needs nothing but an event loop and `Entropy`, so that it runs unchanged where time and network are simulated.
Read next: docs/pulsar-protocol.md
"""

from magnetar.client.client import PulsarClient
from magnetar.client.consumer import Consumer
from magnetar.client.message import EARLIEST, LATEST, Message, MessageId
from magnetar.client.options import (
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    SHARED,
    ClientOptions,
    ConsumerOptions,
    ProducerOptions,
)
from magnetar.client.producer import Producer
from magnetar.client.reader import Reader

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
