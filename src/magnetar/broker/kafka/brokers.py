"""The brokers that serve Kafka's clients: their numbers, which clients know instead of names, and their addresses.

A broker writes its address when it starts. Its number is given by compare-and-set then, and is the same forever; it is
never computed from the name, because two names could have the same number.

Format:    /magnetar/kafka/brokers is `{"host:port": {"id": 0, "url": "kafka://host:port"}, …}`, by the broker's id as
           the admin interface has it. The nodes that Pulsar's layout has for owners and brokers name no such address.
"""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from magnetar.broker.resources.documents import Document, Documents
from magnetar.errors import ServiceNotReadyError

KAFKA: Final = "kafka"
"""The name of the protocol in a broker's own addresses."""
_PATH: Final = "/magnetar/kafka/brokers"


class KafkaBroker(NamedTuple):
    number: int
    host: str
    port: int


class Brokers:
    def __init__(self, documents: Documents) -> None:
        self._documents = documents

    async def register(self, broker_id: str, url: str) -> None:
        """Notes where clients reach a broker."""
        await self._documents.update_or_create(_PATH, partial(_with, broker_id, url))

    async def find(self, broker_id: str) -> KafkaBroker | None:
        """Returns None for a broker that never served Kafka's clients."""
        entry = (await self._documents.read(_PATH) or {}).get(broker_id)
        if not isinstance(entry, dict):
            return None
        url = urlsplit(entry["url"])
        return KafkaBroker(int(entry["id"]), url.hostname or "", url.port or 0)

    async def get(self, broker_id: str) -> KafkaBroker:
        found = await self.find(broker_id)
        if found is None:
            raise ServiceNotReadyError(
                f"broker {broker_id} does not serve Kafka clients: set kafka.enabled for all brokers of the cluster"
            )
        return found


def _with(broker_id: str, url: str, found: Document | None) -> Document:
    entries = found or {}
    known = entries.get(broker_id)
    number = known["id"] if known else max((int(each["id"]) for each in entries.values()), default=-1) + 1
    return entries | {broker_id: {"id": number, "url": url}}
