"""A cluster whose bookies come with auto-recovery, and a reader that counts every replica apart from it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from magnetar.autorecovery.copy import CopySink
from magnetar.autorecovery.service import AutoRecovery
from magnetar.config.ledger import LedgerConfig
from magnetar.config.recovery import RecoveryConfig
from magnetar.ids import BookieId, EntryId, LedgerId
from magnetar.ledger.channels.answers import Finding
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.metadata import close_ledger, stored_keys
from magnetar.ledger.reading.replicas import read_replicas
from magnetar.ledger.writing.writer import LedgerWriter
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.metadata.bookkeeper.recovery_nodes import MarkNote, MarkState, RecoveryNotes, RecoveryPaths
from magnetar.metadata.bookkeeper.underreplication import UnderreplicationMarks
from magnetar.metadata.store import MetadataStore
from magnetar.quorum.sizes import write_set
from magnetar.testing.cluster import BookieCluster, small_config
from magnetar.testing.waiting import until
from magnetar.wire.bookkeeper.frames import Buffer, Flag
from magnetar.wire.bookkeeper.hot_path import AddEncoder
from tests.clusters import new_cluster

QUICK = RecoveryConfig(open_ledger_grace_ms=200, retry_ms=500, chunk_bytes_max=4096)
_HEALED_S = 120.0


def payload(ledger: int, entry: int) -> bytes:
    return f"ledger {ledger} entry {entry} ".encode() * 10


class Clinic:
    """One cluster, one client, and any number of processes with auto-recovery."""

    def __init__(self, cluster: BookieCluster, client: LedgerClient, closing: AsyncExitStack) -> None:
        self.cluster = cluster
        self.client = client
        self.closing = closing
        self.store = cluster.store
        self.nodes = RecoveryPaths(cluster.paths)
        self.marks = UnderreplicationMarks(cluster.store, cluster.paths)
        self.notes = RecoveryNotes(cluster.store, self.nodes)
        self.services: list[AutoRecovery] = []
        self.sessions: list[MetadataStore] = []

    async def add_recovery(self, name: str = "", **settings: Any) -> AutoRecovery:
        """One more process, with a session of its own."""
        store = await self.closing.enter_async_context(self.cluster.session())
        recovery = dataclasses.replace(self.cluster.config.recovery, **settings)
        config = dataclasses.replace(self.cluster.config, recovery=recovery)
        service = AutoRecovery(store, config, self.cluster.runtime, name=name or f"helper-{len(self.services)}")
        service.start()
        self.closing.push_async_callback(service.aclose)
        self.services.append(service)
        self.sessions.append(store)
        return service

    async def write(self, entries: int, quorums: tuple[int, int, int] = (3, 2, 2)) -> LedgerId:
        """`quorums`: ensemble, write and ack quorum."""
        writer = await self.open_writer(entries, quorums)
        await writer.close()
        return writer.ledger_id

    async def open_writer(self, entries: int, quorums: tuple[int, int, int] = (3, 2, 2)) -> LedgerWriter:
        ensemble, write, ack = quorums
        writer = await self.client.create(ensemble_size=ensemble, write_quorum=write, ack_quorum=ack)
        for entry in range(entries):
            await writer.add(payload(writer.ledger_id, entry))
        return writer

    async def metadata(self, ledger: int) -> LedgerMetadata:
        return await self.client.metadata(ledger)

    async def names(self, ledger: int, bookie: str) -> bool:
        return any(bookie in fragment.ensemble for fragment in (await self.metadata(ledger)).fragments)

    async def missing_replicas(self, ledger: int, last: int | None = None) -> list[tuple[int, BookieId, str]]:
        """Reads each entry from each of its bookies; returns what is missing or has other bytes."""
        metadata = await self.metadata(ledger)
        keys = stored_keys(metadata)
        assert keys is not None
        wrong = []
        for entry in range((metadata.last_entry_id if last is None else last) + 1):
            ensemble = metadata.fragment_of(EntryId(entry)).ensemble
            for position in write_set(metadata.ensemble_size, metadata.write_quorum, entry):
                bookie = ensemble[position]
                answers = await read_replicas(self.client.bookies, bookie, keys, [entry], timeout_s=5.0)
                answer = answers[entry]
                if answer.finding is not Finding.PRESENT:
                    wrong.append((entry, bookie, str(answer)))
                elif bytes(answer.entries[0].payload) != payload(ledger, entry):
                    wrong.append((entry, bookie, "another payload"))
        return wrong

    async def bodies(self, ledger: int) -> list[set[tuple[int, int, bytes]]]:
        """LAC, length and payload of the copies of each entry: one if they are all alike."""
        metadata = await self.metadata(ledger)
        keys = stored_keys(metadata)
        assert keys is not None
        found = []
        for entry in range(metadata.last_entry_id + 1):
            ensemble = metadata.fragment_of(EntryId(entry)).ensemble
            copies = set()
            for position in write_set(metadata.ensemble_size, metadata.write_quorum, entry):
                answers = await read_replicas(self.client.bookies, ensemble[position], keys, [entry], timeout_s=5.0)
                read = answers[entry].entries[0]
                copies.add((read.lac, read.length, bytes(read.payload)))
            found.append(copies)
        return found

    async def write_with_gaps(
        self, entries: int, gaps: Collection[tuple[int, int]], quorums: tuple[int, int, int] = (3, 2, 2)
    ) -> LedgerId:
        """Makes a closed ledger. `gaps`: (entry, position in the ensemble) of copies that are missing."""
        writer = await self.open_writer(0, quorums)
        metadata, length = writer.metadata, 0
        keys = stored_keys(metadata)
        assert keys is not None
        header = AddEncoder(writer.ledger_id, keys.master_key, keys.digest, Flag.RECOVERY_ADD).header
        frames: dict[BookieId, dict[int, list[Buffer]]] = {bookie: {} for bookie in metadata.fragments[0].ensemble}
        for entry in range(entries):
            body = payload(writer.ledger_id, entry)
            length += len(body)
            for position in write_set(quorums[0], quorums[1], entry):
                if (entry, position) not in gaps:
                    bookie = metadata.fragments[0].ensemble[position]
                    frames[bookie][entry] = [header(entry, entry - 1, length, body), body]
        for bookie, share in frames.items():
            sink = CopySink(bookie, writer.ledger_id, self.client.context)
            await sink.open()
            await sink.add(share)
            sink.close()
        stored = await self.client.context.ledgers.read(writer.ledger_id)
        await close_ledger(stored, entries - 1, length, self.client.context.metadata)
        return writer.ledger_id

    async def is_state(self, ledger: LedgerId, state: MarkState) -> bool:
        return (await self.note(ledger)).state is state

    async def is_auditor(self, state: str) -> bool:
        node = await self.store.get(self.nodes.auditor)
        return node is not None and json.loads(node.value)["state"] == state

    async def marked(self) -> list[LedgerId]:
        return [ledger async for ledger in self.marks.list()]

    async def note(self, ledger: LedgerId) -> MarkNote:
        return await self.notes.read(ledger) or MarkNote()

    async def wait_healed(self, ledgers: list[LedgerId], *, without: str = "", seconds: float = _HEALED_S) -> None:
        """Returns when no ledger is marked, and none of these names the bookie any more."""

        async def is_healed() -> bool:
            if await self.marked():
                return False
            return not without or not any([await self.names(ledger, without) for ledger in ledgers])

        try:
            await until(is_healed, "no ledger is marked any more", seconds=seconds)
        except AssertionError as error:
            left = {ledger: await self.note(ledger) for ledger in await self.marked()}
            named = [ledger for ledger in ledgers if without and await self.names(ledger, without)]
            raise AssertionError(f"{error}: marked: {left}; still naming {without}: {named}") from None

    def member(self, metadata: LedgerMetadata, position: int = 0) -> BookieId:
        return metadata.fragments[0].ensemble[position]


@asynccontextmanager
async def clinic(bookies: int = 5, *, helpers: int = 1, **settings: Any) -> AsyncIterator[Clinic]:
    """`settings` are those of the section `recovery`."""
    config = small_config(
        recovery=dataclasses.replace(QUICK, **settings),
        ledger=LedgerConfig(connect_timeout_ms=500, read_timeout_ms=1_000, add_timeout_ms=1_000),
    )
    async with new_cluster(bookies, config=config) as cluster, AsyncExitStack() as closing:
        client = await closing.enter_async_context(LedgerClient(cluster.store, cluster.config, cluster.runtime))
        found = Clinic(cluster, client, closing)
        await found.marks.prepare()
        for _ in range(helpers):
            await found.add_recovery()
        yield found
