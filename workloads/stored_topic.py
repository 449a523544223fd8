"""What the bookies have of a topic, read without any broker, and held against the receipts of a `NumberedLoad`.

Needs:   a topic of one numbered producer, which has been unloaded after the load ended: all ledgers with messages are
         closed then.
Checked: Each receipt names an entry that the chain has, at or before the last entry of its closed ledger, and that
         entry has the message. No position was given twice. The messages of the chain are exactly those with a
         receipt, once each and in order. So no two brokers have acknowledged messages for the topic at the same time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from magnetar.config.metadata import MetadataConfig
from magnetar.config.root import Config
from magnetar.errors import ProcessFailedError
from magnetar.ledger.client import LedgerClient
from magnetar.metadata.open import open_store
from magnetar.names import TopicName
from magnetar.runtime.system import SystemRuntime
from magnetar.topic.entry_format.head import read_head
from magnetar.topic.log.managed_ledger import ManagedLedgerStore
from workloads.pulsar_load import Receipt

_TIMEOUT_S: Final = 60.0
_NOTES_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class StoredLedger:
    ledger_id: int
    last_entry_id: int | None
    """None if it is not closed."""
    entries: Mapping[int, range] = field(repr=False)
    """Entry id → the numbers of its messages."""


def read_stored(metadata_url: str, topic: str) -> list[StoredLedger]:
    """Returns the ledgers of the topic in order."""
    return asyncio.run(_read(metadata_url, TopicName.parse(topic)))


async def _read(metadata_url: str, topic: TopicName) -> list[StoredLedger]:
    config, runtime = Config(metadata=MetadataConfig(url=metadata_url)), SystemRuntime()
    async with (
        asyncio.timeout(_TIMEOUT_S),
        await open_store(config, runtime) as store,
        LedgerClient(store, config, runtime) as client,
    ):
        found = await ManagedLedgerStore(store, runtime.entropy).read(topic.log_name)
        if found is None:
            raise ProcessFailedError(f"{topic} has no node in the metadata: it was never written, or it is deleted")
        return [await _read_ledger(client, span.ledger_id) for span in found.value.spans]


async def _read_ledger(client: LedgerClient, ledger_id: int) -> StoredLedger:
    metadata = await client.metadata(ledger_id)
    reader = await client.open_no_recovery(ledger_id)
    heads = [(entry.entry_id, read_head(entry.payload)) async for entry in reader]
    numbers = {entry_id: range(head.sequence_id, head.sequence_id + head.messages) for entry_id, head in heads}
    return StoredLedger(ledger_id, metadata.last_entry_id if metadata.is_closed else None, numbers)


def problems_of(ledgers: list[StoredLedger], receipts: Mapping[int, Receipt]) -> list[str]:
    """Returns what is wrong, in words. `receipts`: number of a message → its receipt."""
    found = [*_wrong_receipts({ledger.ledger_id: ledger for ledger in ledgers}, receipts)]
    stored = [number for ledger in ledgers for _, numbers in sorted(ledger.entries.items()) for number in numbers]
    if stored != sorted(set(stored)):
        found.append("messages are stored twice or out of order")
    if missing := receipts.keys() - set(stored):
        found.append(f"messages with a receipt are not stored: {_some(missing)}")
    if unknown := set(stored) - receipts.keys():
        found.append(f"messages without a receipt are stored: {_some(unknown)}")
    return found[:_NOTES_MAX]


def _wrong_receipts(ledgers: Mapping[int, StoredLedger], receipts: Mapping[int, Receipt]) -> list[str]:
    found: list[str] = []
    owners: dict[Receipt, int] = {}
    for number, receipt in receipts.items():
        if receipt.is_repeated:
            continue
        ledger = ledgers.get(receipt.ledger_id)
        if receipt in owners:
            found.append(f"{receipt} was given to {owners[receipt]} and to {number}")
        elif ledger is None:
            found.append(f"{number} has {receipt}, of a ledger that the topic does not have")
        elif ledger.last_entry_id is not None and receipt.entry_id > ledger.last_entry_id:
            found.append(f"{number} has {receipt}, beyond the last entry {ledger.last_entry_id} of its closed ledger")
        elif number not in ledger.entries.get(receipt.entry_id, ()):
            found.append(f"{number} has {receipt}, which holds {ledger.entries.get(receipt.entry_id)}")
        owners[receipt] = number
    return found


def _some(numbers: set[int]) -> str:
    return f"{len(numbers)}, such as {min(numbers)}"
