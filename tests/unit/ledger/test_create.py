"""Creating, listing and deleting ledgers."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.errors import LedgerExistsError, NoSuchLedgerError, NotEnoughBookiesError, WrongPasswordError
from magnetar.ledger.writing.engine import WriteEngine
from magnetar.metadata.bookkeeper.ledger_metadata import FormatVersion, LedgerMetadata, LedgerState, Versioned
from magnetar.metadata.bookkeeper.ledgers import LedgerMetadataStore
from magnetar.wire.bookkeeper.digests import DigestType
from tests.unit.ledger.writing import writer_world

pytestmark = pytest.mark.virtual_time


async def test_new_ledger_has_what_was_asked_for() -> None:
    async with writer_world(5) as world:
        before = world.cluster.runtime.entropy.wall_ms()
        writer = await world.client.create(
            ensemble_size=4,
            write_quorum=3,
            ack_quorum=2,
            digest_type=DigestType.HMAC,
            password=b"secret",
            custom_metadata={"application": b"test", "empty": b""},
        )
        stored = await world.client.metadata(writer.ledger_id)
        assert (stored.ensemble_size, stored.write_quorum, stored.ack_quorum) == (4, 3, 2)
        assert (stored.digest_type, stored.password) == (DigestType.HMAC, b"secret")
        assert stored.custom_metadata == {"application": b"test", "empty": b""}
        assert stored.state is LedgerState.OPEN
        assert stored.format_version is FormatVersion.BINARY_PROTOBUF
        assert stored.stores_ctime
        assert before <= stored.ctime_ms <= world.cluster.runtime.entropy.wall_ms()
        assert stored.c_token > 0
        (fragment,) = stored.fragments
        assert fragment.first_entry_id == 0
        assert len(dict.fromkeys(fragment.ensemble)) == 4


async def test_quorums_have_sensible_defaults() -> None:
    async with writer_world(3) as world:
        metadata = (await world.client.create()).metadata
        assert (metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum) == (3, 3, 2)
        metadata = (await world.client.create(ensemble_size=2)).metadata
        assert (metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum) == (2, 2, 2)


async def test_every_ledger_gets_another_id() -> None:
    async with writer_world(3) as world:
        writers = await asyncio.gather(*[world.client.create(ensemble_size=1) for _ in range(10)])
        ids = sorted(writer.ledger_id for writer in writers)
        assert ids == sorted(dict.fromkeys(ids))
        assert [ledger async for ledger in world.client.list()] == ids


async def test_ledger_may_have_an_id_of_the_callers_choice() -> None:
    async with writer_world(3) as world:
        async with await world.client.create(ledger_id=2**40 + 5) as writer:
            await writer.add(b"far away")
        assert writer.ledger_id == 2**40 + 5
        assert await world.payloads(writer) == [b"far away"]


async def test_id_that_is_taken_is_refused() -> None:
    async with writer_world(3) as world:
        await world.client.create(ledger_id=9)
        with pytest.raises(LedgerExistsError, match="ledger 9 exists already"):
            await world.client.create(ledger_id=9)


async def test_generated_id_that_somebody_brought_before_is_skipped() -> None:
    async with writer_world(3) as world:
        first = (await world.client.create()).ledger_id
        await world.client.create(ledger_id=first + 1)
        assert (await world.client.create()).ledger_id == first + 2


async def test_creation_that_is_cancelled_leaves_no_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    async with writer_world(3) as world:
        is_created = asyncio.Event()

        async def connect_for_ever(*_: object) -> None:
            is_created.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(WriteEngine, "open", connect_for_ever)
        creating = asyncio.ensure_future(world.client.create())
        await is_created.wait()
        assert len([ledger async for ledger in world.client.list()]) == 1
        creating.cancel()
        await asyncio.wait([creating])
        assert creating.cancelled()
        assert [ledger async for ledger in world.client.list()] == []
        assert len(world.client._writers) == 0


async def test_creation_that_is_cancelled_while_its_metadata_is_stored_leaves_no_ledger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with writer_world(3) as world:
        store = LedgerMetadataStore.create
        is_stored, may_answer = asyncio.Event(), asyncio.Event()

        async def answer_later(ledgers: LedgerMetadataStore, metadata: LedgerMetadata) -> Versioned[LedgerMetadata]:
            created = await store(ledgers, metadata)
            is_stored.set()
            await may_answer.wait()
            return created

        monkeypatch.setattr(LedgerMetadataStore, "create", answer_later)
        creating = asyncio.ensure_future(world.client.create())
        await is_stored.wait()
        creating.cancel()
        may_answer.set()
        await asyncio.wait([creating])
        assert creating.cancelled()
        assert [ledger async for ledger in world.client.list()] == []


@pytest.mark.parametrize("operation", ["create", "delete"])
async def test_creation_that_is_cancelled_does_not_wait_long_for_metadata(
    monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    async with writer_world(3) as world:
        is_waiting = asyncio.Event()

        async def take_for_ever(*_: object) -> None:
            is_waiting.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(WriteEngine, "open", take_for_ever)
        monkeypatch.setattr(LedgerMetadataStore, operation, take_for_ever)
        monkeypatch.setattr("magnetar.ledger.client._TAKE_BACK_S", 0.01)
        creating = asyncio.ensure_future(world.client.create())
        await is_waiting.wait()
        creating.cancel()
        await asyncio.wait([creating])
        assert creating.cancelled()


async def test_too_few_bookies_are_said_and_nothing_is_stored() -> None:
    async with writer_world(2) as world:
        with pytest.raises(NotEnoughBookiesError, match="3 needed, 2 known, 2 writable"):
            await world.client.create(ensemble_size=3)
        assert [ledger async for ledger in world.client.list()] == []


@pytest.mark.parametrize("digest_type", list(DigestType))
async def test_entries_of_every_digest_type_are_read_back(digest_type: DigestType) -> None:
    async with writer_world(3) as world:
        async with await world.client.create(digest_type=digest_type, password=b"pw") as writer:
            await writer.add(b"sealed")
        reader = await world.client.open(writer.ledger_id, password=b"pw")
        assert [bytes(entry.payload) async for entry in reader] == [b"sealed"]
        with pytest.raises(WrongPasswordError):
            await world.client.open(writer.ledger_id, password=b"other")


async def test_deleted_ledger_is_gone() -> None:
    async with writer_world(3) as world:
        async with await world.client.create() as writer:
            await writer.add(b"short life")
        await world.client.delete(writer.ledger_id)
        with pytest.raises(NoSuchLedgerError):
            await world.client.open(writer.ledger_id)
        with pytest.raises(NoSuchLedgerError):
            await world.client.delete(writer.ledger_id)


async def test_ledger_left_open_is_recovered_when_it_is_opened() -> None:
    async with writer_world(3) as world:
        writer = await world.client.create()
        await writer.add(b"one")
        await writer.release()
        reader = await world.client.open(writer.ledger_id)
        assert [bytes(entry.payload) async for entry in reader] == [b"one"]
        assert (await world.client.metadata(writer.ledger_id)).is_closed
