"""A cluster in this process with one ledger whose entries a test puts on exactly the bookies it names.

async with ledger_world(3) as world:
    await world.create(E=3, Qw=3, Qa=2)
    await world.put(0, on=[0, 1, 2])          # positions of the ensemble
    await world.put(1, on=[0])                # only there: perhaps acknowledged, perhaps not
    closed = await world.recover()
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from magnetar.config.ledger import LedgerConfig
from magnetar.ids import BookieId, EntryId, LedgerId
from magnetar.ledger.channels.bookies import Bookies
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.metadata import LedgerKeys, MetadataContext, ledger_keys
from magnetar.ledger.reading.reader import LedgerReader
from magnetar.ledger.recovery.recovery import RecoveryProgress, closed, recover
from magnetar.metadata.bookkeeper.ledger_metadata import Fragment, LedgerMetadata, Versioned
from magnetar.metadata.bookkeeper.ledgers import LedgerMetadataStore
from magnetar.quorum.rack_aware import placement_policy
from magnetar.quorum.sizes import write_set
from magnetar.testing.cluster import BookieCluster, small_config
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.digests import DigestType
from magnetar.wire.bookkeeper.messages import V3, AddEntry, AddResponse, ReadEntry, ReadResponse, WriteLac
from tests.clusters import new_cluster

PASSWORD = b"open sesame"
TIMEOUT_S = 5.0
QUICK = LedgerConfig(
    read_timeout_ms=1_000,
    connect_timeout_ms=1_000,
    reconnect_backoff_ms=1,
    reconnect_backoff_max_ms=20,
    add_timeout_ms=500,
    speculative_read_max_ms=200,
    recovery_timeout_ms=10_000,
)


def payload_of(entry_id: int) -> bytes:
    return f"payload {entry_id} ".encode() * (1 + entry_id % 3)


def length_up_to(entry_id: int) -> int:
    return sum(len(payload_of(i)) for i in range(entry_id + 1))


class World:
    def __init__(self, cluster: BookieCluster, context: LedgerContext) -> None:
        self.cluster = cluster
        self.context = context
        self.stored: Versioned[LedgerMetadata]
        self.keys: LedgerKeys

    # --- making a ledger ----------------------------------------------------------------------------------------------

    async def create(
        self,
        *,
        E: int,  # noqa: N803 - as the protocol's texts call them
        Qw: int,  # noqa: N803
        Qa: int,  # noqa: N803
        digest: DigestType = DigestType.CRC32C,
        fragments: Mapping[int, Sequence[int]] | None = None,
    ) -> None:
        """Fragments: first entry → numbers of bookies in the cluster. Default: one with the first E bookies."""
        ids = self.cluster.bookie_ids
        chosen = fragments or {0: range(E)}
        metadata = LedgerMetadata(
            ledger_id=LedgerId(7),
            ensemble_size=E,
            write_quorum=Qw,
            ack_quorum=Qa,
            fragments=tuple(
                Fragment(EntryId(first), tuple(ids[number] for number in numbers)) for first, numbers in chosen.items()
            ),
            digest_type=digest,
            password=PASSWORD,
            ctime_ms=1,
            stores_ctime=True,
        )
        self.stored = await self.context.ledgers.create(metadata)
        self.keys = ledger_keys(metadata, PASSWORD, DigestType.CRC32C)

    @property
    def ensemble(self) -> tuple[BookieId, ...]:
        return self.stored.value.fragments[-1].ensemble

    async def put(
        self, entry_id: int, *, on: Sequence[int] | None = None, lac: int | None = None, recovery: bool = False
    ) -> list[Code]:
        """Puts it at these positions of its ensemble, by default at its write set. Default LAC: the entry before."""
        m = self.stored.value
        positions = write_set(m.ensemble_size, m.write_quorum, entry_id) if on is None else on
        ensemble = m.fragment_of(EntryId(entry_id)).ensemble
        return [await self.put_at(ensemble[position], entry_id, lac=lac, recovery=recovery) for position in positions]

    async def put_at(
        self, bookie: BookieId, entry_id: int, *, lac: int | None = None, recovery: bool = False, damaged: bool = False
    ) -> Code:
        payload = payload_of(entry_id)
        lac = entry_id - 1 if lac is None else lac
        sealed = self.keys.digest.seal(self.keys.ledger_id, entry_id, lac, length_up_to(entry_id), payload)
        if damaged:
            payload = payload[:-1] + b"?"
        request = AddEntry(
            self.keys.ledger_id, entry_id, self.keys.master_key, sealed + payload, recovery=recovery, version=V3
        )
        channel = await self.context.bookies.channel(bookie)
        response = await channel.request(request, timeout_s=TIMEOUT_S)
        assert isinstance(response, AddResponse)
        return response.code

    async def put_explicit_lac(self, lac: int, *, on: Sequence[int]) -> None:
        body = self.keys.digest.seal_lac(self.keys.ledger_id, lac)
        request = WriteLac(self.keys.ledger_id, lac, self.keys.master_key, body, version=V3)
        for position in on:
            channel = await self.context.bookies.channel(self.ensemble[position])
            response = await channel.request(request, timeout_s=TIMEOUT_S)
            assert response.code is Code.EOK

    async def close(self, last: int) -> None:
        stored = await self.metadata()
        length = length_up_to(last) if last >= 0 else 0
        await self.context.ledgers.update(closed(stored.value, last, length), stored.version)

    # --- looking ------------------------------------------------------------------------------------------------------

    async def has(self, bookie: BookieId, entry_id: int) -> bool:
        channel = await self.context.bookies.channel(bookie)
        response = await channel.request(ReadEntry(self.keys.ledger_id, entry_id, version=V3), timeout_s=TIMEOUT_S)
        assert isinstance(response, ReadResponse)
        if response.code is not Code.EOK:
            return False
        entry = self.keys.digest.open(self.keys.ledger_id, entry_id, response.body)
        return bytes(entry.payload) == payload_of(entry_id) and entry.length == length_up_to(entry_id)

    async def lac_at(self, bookie: BookieId, entry_id: int) -> int:
        channel = await self.context.bookies.channel(bookie)
        response = await channel.request(ReadEntry(self.keys.ledger_id, entry_id, version=V3), timeout_s=TIMEOUT_S)
        assert isinstance(response, ReadResponse)
        return self.keys.digest.open(self.keys.ledger_id, entry_id, response.body).lac

    async def copies(self, metadata: LedgerMetadata, entry_id: int) -> int:
        """On how many bookies that the metadata names for it."""
        ensemble = metadata.fragment_of(EntryId(entry_id)).ensemble
        positions = write_set(metadata.ensemble_size, metadata.write_quorum, entry_id)
        running = {node.bookie_id for node in self.cluster.nodes if node.is_running}
        return sum([await self.has(ensemble[p], entry_id) for p in positions if ensemble[p] in running])

    async def metadata(self) -> Versioned[LedgerMetadata]:
        return await self.context.ledgers.read(self.keys.ledger_id)

    # --- what is tested -----------------------------------------------------------------------------------------------

    async def recover(
        self, *, context: LedgerContext | None = None, on_progress: Callable[[RecoveryProgress], None] | None = None
    ) -> LedgerMetadata:
        return (await recover(self.stored, self.keys, context or self.context, on_progress)).value

    async def open_reader(self, **settings: Any) -> LedgerReader:
        config = dataclasses.replace(self.context.config, **settings)
        return await LedgerReader.open(await self.metadata(), self.keys, self.context._replace(config=config))


@contextlib.asynccontextmanager
async def ledger_world(bookies: int, config: LedgerConfig = QUICK) -> AsyncIterator[World]:
    whole = small_config(ledger=config)
    async with new_cluster(bookies, config=whole) as cluster, client_context(cluster) as context:
        yield World(cluster, context)


@contextlib.asynccontextmanager
async def client_context(cluster: BookieCluster) -> AsyncIterator[LedgerContext]:
    """Another client of the cluster, with connections and a session of its own."""
    entropy = cluster.runtime.entropy
    async with (
        cluster.session() as store,
        Bookies(
            store,
            cluster.config,
            entropy,
        ) as bookies,
    ):
        ledgers = LedgerMetadataStore(store, cluster.paths, entropy)
        placement = placement_policy(cluster.config.placement, entropy.random)
        yield LedgerContext(MetadataContext(ledgers, store, entropy), bookies, placement, cluster.config.ledger)
