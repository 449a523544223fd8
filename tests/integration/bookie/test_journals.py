"""A whole bookie with several journals, on real disks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from magnetar.bookie.bookie import Bookie
from magnetar.config.bookie import BookieConfig
from magnetar.errors import CookieMismatchError
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.ends import encode_request
from magnetar.wire.bookkeeper.frames import LAST_ENTRY
from magnetar.wire.bookkeeper.messages import V2, AddEntry, ForceLedger, ReadEntry, ReadLac, ReadLacResponse, WriteLac
from tests.integration.bookie.conftest import DIGEST, KEY, Client, Node, entry

LEDGERS = range(7)


@pytest.fixture
def config(tmp_path: Path) -> BookieConfig:
    journals = ",".join(str(tmp_path / "several" / f"journal-{number}") for number in range(3))
    return BookieConfig(journal_dirs=journals, ledger_dirs=str(tmp_path / "several" / "ledgers"), port=0)


@pytest_asyncio.fixture
async def several(node: Node, config: BookieConfig) -> AsyncIterator[Node]:
    """The node's own bookie makes way."""
    await node.stop()
    node.bookie = await node.open_with(config)
    yield node


async def restart(node: Node, config: BookieConfig) -> Client:
    await node.stop()
    node.bookie = await node.open_with(config)
    return await node.client()


async def test_adds_fences_and_lacs_of_all_ledgers_are_kept(several: Node, config: BookieConfig) -> None:
    client = await several.client()
    for ledger_id in LEDGERS:
        for entry_id in range(3):
            answer = await client.ask(AddEntry(ledger_id, entry_id, KEY, entry(ledger_id, entry_id)))
            assert answer.code is Code.EOK
    assert (await client.ask(WriteLac(4, 2, KEY, DIGEST.seal_lac(4, 2)))).code is Code.EOK
    assert (await client.ask(ReadEntry(5, LAST_ENTRY, fence=True, master_key=KEY))).code is Code.EOK
    assert (await client.ask(ForceLedger(6))).code is Code.EOK
    for _ in range(2):
        client = await restart(several, config)
        for ledger_id in LEDGERS:
            assert (await client.ask(ReadEntry(ledger_id, 2))).code is Code.EOK
        assert (await client.ask(AddEntry(5, 3, KEY, entry(5, 3)))).code is Code.EFENCED
        lac = await client.ask(ReadLac(4))
        assert isinstance(lac, ReadLacResponse)
        assert lac.lac_body == DIGEST.seal_lac(4, 2)


async def test_compact_adds_of_many_ledgers_in_one_buffer_are_all_answered(several: Node) -> None:
    client = await several.client()
    frames = [
        encode_request(AddEntry(ledger_id, entry_id, KEY, entry(ledger_id, entry_id), version=V2))
        for entry_id in range(20)
        for ledger_id in LEDGERS
    ]
    client._writer.write(b"".join(frames))
    answers = await client._reader.readexactly(len(frames) * 28)
    assert len(answers) == len(frames) * 28
    several_bookie: Bookie | None = several.bookie
    assert several_bookie is not None
    assert [journal.last_sequence > 0 for journal in several_bookie.journals.all] == [True] * 3
    assert several_bookie.adds.in_progress == 0
    for ledger_id in LEDGERS:
        assert (await client.ask(ReadEntry(ledger_id, 19, version=V2))).code is Code.EOK


async def test_a_journal_directory_cannot_be_taken_out_of_a_bookie_that_has_data(
    several: Node, config: BookieConfig
) -> None:
    await several.stop()
    fewer = BookieConfig(
        journal_dirs=config.journal_dirs.rpartition(",")[0], ledger_dirs=config.ledger_dirs, port=config.port
    )
    with pytest.raises(CookieMismatchError, match=r"journal directories is .*, the cookie says"):
        await several.open_with(fewer)
