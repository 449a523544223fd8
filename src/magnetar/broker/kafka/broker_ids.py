"""Numbers of brokers, which Kafka's clients know instead of names. Each broker keeps its number forever.

A number is given by compare-and-set when a broker is first named to a client. It is never computed from the name: two
names could have the same number.

Format:    /magnetar/kafka/brokers is `{"host:port": 0, …}`, with the broker's id as the admin interface has it.
"""

from __future__ import annotations

from typing import Final

from magnetar.broker.resources.documents import Document, Documents

_PATH: Final = "/magnetar/kafka/brokers"


class BrokerIds:
    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self._known: dict[str, int] = {}

    async def id_of(self, broker: str) -> int:
        known = self._known.get(broker)
        if known is None:
            numbers = await self._documents.update_or_create(_PATH, lambda found: _with(found, broker))
            known = self._known[broker] = int(numbers[broker])
        return known


def _with(found: Document | None, broker: str) -> Document | None:
    numbers = found or {}
    if broker in numbers:
        return None
    return numbers | {broker: max(map(int, numbers.values()), default=-1) + 1}
