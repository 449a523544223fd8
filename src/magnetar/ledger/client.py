"""LedgerClient: ledgers on a cluster of bookies.

    async with LedgerClient(store, config, runtime) as client:
        async with await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2) as writer:
            entry_id = await writer.add(b"…")
        reader = await client.open(writer.ledger_id)
        async for entry in reader:
            print(entry.entry_id, bytes(entry.payload))

By default a ledger that its writer left open is recovered when it is opened, which means taken from the writer, and
closed. With `recover=False` the writer is left alone, and the reader follows what is acknowledged.

The client owns the connections and the writers that it made. A ledger that is still open when the client is closed
stays open in the metadata, and can be recovered. The client does not own the metadata store.
Read next: ledger/writing/writer.py, ledger/reading/reader.py, ledger/recovery/recovery.py; docs/ledger-protocol.md
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final, Self

from magnetar.config.root import Config
from magnetar.errors import BadVersionError, LedgerError, MagnetarError
from magnetar.ids import BookieId, LedgerId, ledger_id
from magnetar.ledger.channels.bookies import Bookies
from magnetar.ledger.channels.local_transport import Accept
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.metadata import LedgerKeys, MetadataContext, NewLedger, create_ledger, ledger_keys
from magnetar.ledger.reading.reader import LedgerReader
from magnetar.ledger.recovery.recovery import RecoveryProgress, recover
from magnetar.ledger.writing.advanced_writer import AdvancedLedgerWriter
from magnetar.ledger.writing.writer import LedgerWriter, WriterListener
from magnetar.metadata.bookkeeper.id_generator import LedgerIdGenerator
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerMetadata, Versioned
from magnetar.metadata.bookkeeper.ledgers import LedgerMetadataStore
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.compare_and_set import TRIES_MAX
from magnetar.metadata.store import MetadataStore
from magnetar.quorum.rack_aware import placement_policy
from magnetar.quorum.sizes import QuorumSizes
from magnetar.runtime.runtime import Runtime
from magnetar.wire.bookkeeper.digests import DigestType

log = logging.getLogger(__name__)

_TAKE_BACK_S: Final = 5.0  # A caller that is cancelled, or gets an error, waits no longer for the metadata.


class LedgerClient:
    """Is used as `async with LedgerClient(...)`, or with `start` and `aclose`."""

    def __init__(
        self, store: MetadataStore, config: Config, runtime: Runtime, *, local: Mapping[BookieId, Accept] | None = None
    ) -> None:
        """`local`: bookies of this process, which are reached without a socket."""
        paths = BookKeeperPaths(config.metadata.ledgers_root)
        entropy = runtime.entropy
        self._ledgers = LedgerMetadataStore(store, paths, entropy)
        self._ids = LedgerIdGenerator(store, paths)
        self.bookies = Bookies(store, config, entropy, local=local)
        self.context = LedgerContext(
            MetadataContext(self._ledgers, store, entropy),
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
        """Creates a ledger and returns its writer.

        The write quorum is the ensemble's size by default, the ack quorum a majority of the write quorum.

        Raises NotEnoughBookiesError; LedgerExistsError if the requested id is taken; WriterFailedError if a bookie
        cannot be reached and may not be replaced, as with deferred sync.
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
        context = self.context
        creating = asyncio.get_running_loop().create_task(
            create_ledger(new, self.bookies.candidates(), context.placement, self._ids, context.metadata),
            name="ledger-create",
        )
        try:
            created = await asyncio.shield(
                creating
            )  # If this call is cancelled, what the task stores has to be deleted.
            keys = ledger_keys(created.value, password, digest_type)
            writer = await LedgerWriter.open(created, keys, context, listener=listener, deferred_sync=deferred_sync)
        except BaseException:
            await self._take_back(creating)
            raise
        self._writers[writer] = None
        writer.on_ended = self._forget
        return writer

    async def next_id(self) -> LedgerId:
        """Returns an id to pass as `ledger_id` later, for a caller that must store it before the ledger exists."""
        return await self._ids.next_id()

    def _take_back(self, creating: asyncio.Task[Versioned[LedgerMetadata]]) -> asyncio.Future[None]:
        """Deletes a ledger that no caller knows, since it would stay open forever. Continues if the caller is
        cancelled."""
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
        """Works like `create`, for a caller that chooses the entry ids. Takes the same arguments, except the
        listener."""
        writer = await self.create(**choices)
        config = self.context.config
        return AdvancedLedgerWriter(
            writer, waiting_max=config.adds_in_flight_max, wait_s=config.add_quorum_timeout_ms / 1000
        )

    def _forget(self, writer: LedgerWriter) -> None:
        self._writers.pop(writer, None)

    async def open(
        self,
        ledger: int,
        *,
        password: bytes = b"",
        digest_type: DigestType = DigestType.CRC32C,
        recover: bool = True,
        on_progress: Callable[[RecoveryProgress], None] | None = None,
    ) -> LedgerReader:
        """Returns a reader. The digest type counts only for ledgers of the oldest releases, whose metadata lacks it."""
        stored, keys = await self._known(ledger, password, digest_type)
        if recover:
            stored = await self._recovered(stored, keys, on_progress)
        return await LedgerReader.open(stored, keys, self.context)

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
        """Closes the ledger if its writer did not, and returns its metadata."""
        stored, keys = await self._known(ledger, password, digest_type)
        return (await self._recovered(stored, keys, on_progress)).value

    async def _recovered(
        self,
        stored: Versioned[LedgerMetadata],
        keys: LedgerKeys,
        on_progress: Callable[[RecoveryProgress], None] | None,
    ) -> Versioned[LedgerMetadata]:
        return stored if stored.value.is_closed else await recover(stored, keys, self.context, on_progress)

    async def _known(
        self, ledger: int, password: bytes, digest_type: DigestType
    ) -> tuple[Versioned[LedgerMetadata], LedgerKeys]:
        stored = await self._ledgers.read(ledger_id(ledger))
        return stored, ledger_keys(stored.value, password, digest_type)

    async def metadata(self, ledger: int) -> LedgerMetadata:
        """Returns the ledger's metadata, or raises NoSuchLedgerError."""
        return (await self._ledgers.read(ledger_id(ledger))).value

    async def delete(self, ledger: int) -> None:
        """Deletes the ledger, or raises NoSuchLedgerError. Its writer and readers will fail; bookies free its space
        later."""
        for _ in range(TRIES_MAX):
            stored = await self._ledgers.read(ledger_id(ledger))
            try:
                await self._ledgers.delete(stored.value.ledger_id, stored.version)
            except BadVersionError:  # Another client changed it at the same moment; it is deleted anyway.
                await asyncio.sleep(0)
            else:
                return
        raise LedgerError(
            f"ledger {ledger} changes faster than it can be deleted: try again when no client writes to it"
        )

    def list(self) -> AsyncIterator[LedgerId]:
        """Yields all ledgers of the cluster, ascending by the directories they are in."""
        return self._ledgers.list()
