"""Requests of a length that no client makes: refused, and nothing of them is left in a whole bookie."""

from __future__ import annotations

import logging
import struct

import pytest

from magnetar.sim.device import Crash
from magnetar.storage.journal.format import ExplicitLac, RecordKind, encode_explicit_lac
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.frames import LAST_ENTRY
from magnetar.wire.bookkeeper.messages import AddEntry, AnyRequest, ReadEntry, ReadLac, ReadLacResponse, WriteLac
from tests.unit.bookie.node_story import DIGEST, KEY
from tests.unit.bookie.sim_node import Client, SimNode
from tests.unit.bookie.test_limits import on_a_node

LONG_KEY = b"k" * 300
LONG_LAC = struct.pack(">qq", 5, 3).ljust(70_000, b"z")


def entry(ledger_id: int, entry_id: int) -> bytes:
    return DIGEST.seal(ledger_id, entry_id, entry_id - 1, 1, b"x") + b"x"


@pytest.mark.parametrize(
    "bad",
    [
        WriteLac(5, 3, KEY, LONG_LAC),
        WriteLac(5, 3, LONG_KEY, DIGEST.seal_lac(5, 3)),
        ReadEntry(5, LAST_ENTRY, fence=True, master_key=LONG_KEY),
        AddEntry(5, 0, LONG_KEY, entry(5, 0)),
    ],
    ids=["long LAC", "LAC with a long key", "fence with a long key", "add with a long key"],
)
def test_a_request_with_a_length_that_cannot_be_stored_leaves_the_ledger_to_its_owner(bad: AnyRequest) -> None:
    async def test(node: SimNode) -> None:
        client = await Client.connect(node.bookie.port)
        assert (await client.ask(bad)).code is Code.EBADREQ
        await node.bookie.flush()
        assert (await client.ask(AddEntry(5, 0, KEY, entry(5, 0)))).code is Code.EOK
        assert (await client.ask(ReadEntry(5, LAST_ENTRY, fence=True, master_key=KEY))).code is Code.EOK
        await node.bookie.flush()
        client.close()

    on_a_node(test)


def test_a_bookie_whose_journal_has_an_explicit_lac_too_long_to_store_starts_and_flushes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As an earlier version left it. The LAC before it, the key and the entries are kept."""

    async def test(node: SimNode) -> None:
        client = await Client.connect(node.bookie.port)
        assert (await client.ask(AddEntry(5, 0, KEY, entry(5, 0)))).code is Code.EOK
        lac = DIGEST.seal_lac(5, 0)
        assert (await client.ask(WriteLac(5, 0, KEY, lac))).code is Code.EOK
        record = encode_explicit_lac(ExplicitLac(5, KEY, LONG_LAC))
        await node.bookie._records.write(RecordKind.EXPLICIT_LAC, (record,))
        for _ in range(2):
            node.crash(Crash.KILL)
            await node.start()
            await node.bookie.flush()
        client = await Client.connect(node.bookie.port)
        answer = await client.ask(ReadLac(5))
        assert isinstance(answer, ReadLacResponse)
        assert (answer.lac_body, answer.last_entry_body) == (lac, entry(5, 0))
        client.close()

    with caplog.at_level(logging.WARNING, "magnetar.bookie.journals"):
        on_a_node(test)
    said = [record.message for record in caplog.records if record.name == "magnetar.bookie.journals"]
    assert said == ["an explicit LAC is too long and left out"], "once: it was flushed past"
