"""LedgerClient: ledgers on a cluster of bookies.

    async with LedgerClient(store, config, runtime) as client:
        async with await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2) as writer:
            entry_id = await writer.add(b"…")
        reader = await client.open(writer.ledger_id)
        async for entry in reader:
            print(entry.entry_id, bytes(entry.payload))

Open:      by default a ledger that its writer left open is recovered: taken from the writer, and closed. With
           `recover=False` the writer is left alone, and the reader follows what is acknowledged.
Owns:      the connections, and the writers it made; what is still open when it is closed stays open in the metadata,
           for somebody to recover. Does not own the metadata store.
Read next: writer.py, reader.py, recovery.py; docs/ledger-protocol.md
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from magnetar.config.root import Config
from magnetar.errors import BadVersionError, LedgerError, MagnetarError
from magnetar.ids import BookieId, LedgerId, ledger_id
from magnetar.ledger.advanced_writer import AdvancedLedgerWriter
from magnetar.ledger.bookies import Bookies
from magnetar.ledger.compare_and_set import TRIES_MAX, MetadataParts
from magnetar.ledger.create import NewLedger, create_ledger
from magnetar.ledger.keys import LedgerKeys, ledger_keys
from magnetar.ledger.local_transport import Accept
from magnetar.ledger.parts import Parts
from magnetar.ledger.reader import LedgerReader
from magnetar.ledger.recovery import RecoveryProgress, recover
from magnetar.ledger.writer import LedgerWriter, WriterListener
from magnetar.metadata.bookkeeper.id_generator import LedgerIdGenerator
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.metadata.bookkeeper.ledgers import LedgerMetadataStore
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.bookkeeper.versioned import Versioned
from magnetar.metadata.store import MetadataStore
from magnetar.quorum.policies import placement_policy
from magnetar.quorum.sizes import QuorumSizes
from magnetar.runtime.runtime import Runtime
from magnetar.wire.bookkeeper.digests import DigestType

log = logging.getLogger(__name__)

_TAKE_BACK_S: Final = 5.0  # A caller that is cancelled, or told of an error, waits no longer for the metadata.


@dataclass(frozen=True, slots=True)
class ClientStatistics:
    writers_open: int


class LedgerClient:
    """`async with LedgerClient(...)`, or `start` and `aclose`."""

    def __init__(
        self,
        store: MetadataStore,
        config: Config,
        runtime: Runtime,
        *,
        local: Mapping[BookieId, Accept] | None = None,
    ) -> None:
        """`local`: bookies of this process, which are reached without a socket."""
        paths = BookKeeperPaths(config.metadata.ledgers_root)
        entropy = runtime.entropy
        self._ledgers = LedgerMetadataStore(store, paths, entropy)
        self._ids = LedgerIdGenerator(store, paths)
        self.bookies = Bookies(store, config, entropy, local=local)
        self.parts = Parts(
            MetadataParts(self._ledgers, store, entropy),
            self.bookies,
            placement_policy(config.placement, entropy.random),
            config.ledger,
        )
        self._writers: dict[LedgerWriter, None] = {}
        self._taken_back: dict[asyncio.Task[None], None] = {}

    async def start(self) -> None:
        """Returns when the registered bookies are known."""
        await self.bookies.start()

    async def aclose(self) -> None:
        """Ends open writers without closing their ledgers."""
        for writer in list(self._writers):
            await writer.release()
        if self._taken_back:
            await asyncio.wait(self._taken_back)
        await self._ids.aclose()
        await self.bookies.aclose()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()

    def statistics(self) -> ClientStatistics:
        return ClientStatistics(writers_open=len(self._writers))

    # --- writing ------------------------------------------------------------------------------------------------------

    async def create(
        self,
        *,
        ensemble_size: int = 3,
        write_quorum: int | None = None,
        ack_quorum: int | None = None,
        ledger_id: int | None = None,
        digest_type: DigestType = DigestType.CRC32C,
        password: bytes = b"",
        custom_metadata: Mapping[str, bytes] | None = None,
        deferred_sync: bool = False,
        listener: WriterListener | None = None,
    ) -> LedgerWriter:
        """A new ledger and its writer.

        Without a write quorum it is the ensemble's size, without an ack quorum a majority of the write quorum.
        NotEnoughBookiesError; LedgerExistsError if the id that was asked for is taken; WriterFailedError if one of the
        bookies cannot be reached and nobody may replace it, as with deferred sync.
        """
        write = ensemble_size if write_quorum is None else write_quorum
        ack = write // 2 + 1 if ack_quorum is None else ack_quorum
        new = NewLedger(
            sizes=QuorumSizes(ensemble_size, write, ack),
            ledger_id=ledger_id,
            digest_type=digest_type,
            password=password,
            custom_metadata=custom_metadata or {},
        )
        parts = self.parts
        creating = asyncio.get_running_loop().create_task(
            create_ledger(new, self.bookies.candidates(), parts.placement, self._ids, parts.metadata),
            name="ledger-create",
        )
        try:
            created = await asyncio.shield(creating)  # If we are cancelled, what it stores has to be taken back.
            keys = ledger_keys(created.value, password, digest_type)
            writer = await LedgerWriter.open(created, keys, parts, listener=listener, deferred_sync=deferred_sync)
        except BaseException:
            await self._take_back(creating)
            raise
        self._writers[writer] = None
        writer.on_ended = self._forget
        return writer

    async def next_id(self) -> LedgerId:
        """For a ledger that is created later, with this `ledger_id`: for whoever must note it before it exists."""
        return await self._ids.next_id()

    def _take_back(self, creating: asyncio.Task[Versioned[LedgerMetadata]]) -> asyncio.Future[None]:
        """Of a ledger that nobody has heard of: it would stay open for ever. Goes on if the caller is cancelled."""
        task = asyncio.get_running_loop().create_task(self._delete_unheard(creating), name="ledger-take-back")
        self._taken_back[task] = None
        task.add_done_callback(lambda task: self._taken_back.pop(task, None))
        return asyncio.shield(task)

    async def _delete_unheard(self, creating: asyncio.Task[Versioned[LedgerMetadata]]) -> None:
        created: Versioned[LedgerMetadata] | None = None
        try:
            async with asyncio.timeout(_TAKE_BACK_S):
                created = await creating
                await self._ledgers.delete(created.value.ledger_id, created.version)
        except (MagnetarError, TimeoutError) as error:
            is_nothing_left = created is None and isinstance(error, MagnetarError) and not error.outcome_unknown
            if not is_nothing_left:
                ledger_id = created.value.ledger_id if created is not None else None
                log.warning("an empty ledger may be left", extra={"ledger_id": ledger_id, "why": repr(error)})

    async def create_advanced(self, **choices: Any) -> AdvancedLedgerWriter:
        """Like `create`, for a caller that chooses the entry ids. Takes the same arguments, but for the listener."""
        writer = await self.create(**choices)
        config = self.parts.config
        return AdvancedLedgerWriter(
            writer, waiting_max=config.adds_in_flight_max, wait_s=config.add_quorum_timeout_ms / 1000
        )

    def _forget(self, writer: LedgerWriter) -> None:
        self._writers.pop(writer, None)

    # --- reading ------------------------------------------------------------------------------------------------------

    async def open(
        self,
        ledger: int,
        *,
        password: bytes = b"",
        digest_type: DigestType = DigestType.CRC32C,
        recover: bool = True,
        on_progress: Callable[[RecoveryProgress], None] | None = None,
    ) -> LedgerReader:
        """A reader. The digest type counts only for ledgers of the oldest releases, whose metadata does not say it."""
        stored, keys = await self._known(ledger, password, digest_type)
        if recover:
            stored = await self._recovered(stored, keys, on_progress)
        return await LedgerReader.open(stored, keys, self.parts)

    async def open_no_recovery(
        self, ledger: int, *, password: bytes = b"", digest_type: DigestType = DigestType.CRC32C
    ) -> LedgerReader:
        return await self.open(ledger, password=password, digest_type=digest_type, recover=False)

    async def recover(
        self,
        ledger: int,
        *,
        password: bytes = b"",
        digest_type: DigestType = DigestType.CRC32C,
        on_progress: Callable[[RecoveryProgress], None] | None = None,
    ) -> LedgerMetadata:
        """Closes the ledger if its writer did not. Returns its metadata."""
        stored, keys = await self._known(ledger, password, digest_type)
        return (await self._recovered(stored, keys, on_progress)).value

    async def _recovered(
        self,
        stored: Versioned[LedgerMetadata],
        keys: LedgerKeys,
        on_progress: Callable[[RecoveryProgress], None] | None,
    ) -> Versioned[LedgerMetadata]:
        return stored if stored.value.is_closed else await recover(stored, keys, self.parts, on_progress)

    async def _known(
        self, ledger: int, password: bytes, digest_type: DigestType
    ) -> tuple[Versioned[LedgerMetadata], LedgerKeys]:
        stored = await self._ledgers.read(ledger_id(ledger))
        return stored, ledger_keys(stored.value, password, digest_type)

    # --- metadata -----------------------------------------------------------------------------------------------------

    async def metadata(self, ledger: int) -> LedgerMetadata:
        """NoSuchLedgerError if there is no such ledger."""
        return (await self._ledgers.read(ledger_id(ledger))).value

    async def delete(self, ledger: int) -> None:
        """Whoever writes or reads it will fail; bookies give its room back later. NoSuchLedgerError if it is gone."""
        for _ in range(TRIES_MAX):
            stored = await self._ledgers.read(ledger_id(ledger))
            try:
                await self._ledgers.delete(stored.value.ledger_id, stored.version)
            except BadVersionError:  # Somebody changed it at the same moment; it is to go all the same.
                await asyncio.sleep(0)
            else:
                return
        raise LedgerError(f"ledger {ledger} changes faster than it can be deleted: try again when nobody writes to it")

    def list(self) -> AsyncIterator[LedgerId]:
        """All ledgers of the cluster, ascending by the directories they are in."""
        return self._ledgers.list()
