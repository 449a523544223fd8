"""What a bookie answers when it has nothing of a ledger, or takes nothing: the codes that Apache's has for it."""

from __future__ import annotations

import pytest

from magnetar.bookie.read_only import ReadOnlyReason
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.ends import encode_request
from magnetar.wire.bookkeeper.frames import LAST_ENTRY
from magnetar.wire.bookkeeper.messages import (
    V2,
    AddEntry,
    AnyRequest,
    BatchRead,
    ListEntries,
    ReadEntry,
    ReadLac,
    WriteLac,
)
from tests.unit.bookie.node_story import DIGEST, KEY
from tests.unit.bookie.one_node import on_a_node
from tests.unit.bookie.sim_node import Client, SimNode
from tests.unit.bookie.test_limits import Reader
from tests.unit.storage.samples import change_flags

LEDGER = 7
FENCE = ReadEntry(LEDGER, LAST_ENTRY, fence=True, master_key=KEY)
WRITE_LAC = WriteLac(LEDGER, 3, KEY, DIGEST.seal_lac(LEDGER, 3))
POLL = ReadEntry(LEDGER, LAST_ENTRY, previous_lac=0, timeout_ms=30_000, piggyback=True)


def add(entry_id: int, *, recovery: bool = False) -> AddEntry:
    body = DIGEST.seal(LEDGER, entry_id, -1, 4, b"data") + b"data"
    return AddEntry(LEDGER, entry_id, KEY, body, recovery=recovery)


async def code_of(client: Client, request: AnyRequest) -> Code:
    return (await client.ask(request)).code


async def compact_code_of(node: SimNode, request: AnyRequest) -> Code:
    reader = await Reader.connect(node)
    reader.write(encode_request(request))
    (answer,) = await reader.answers(1)
    reader.close()
    return answer.code


# --- nothing of it is here --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (ReadEntry(LEDGER, 0), Code.ENOLEDGER),
        (ReadEntry(LEDGER, LAST_ENTRY), Code.ENOLEDGER),
        (POLL, Code.ENOLEDGER),
        (ListEntries(LEDGER), Code.ENOLEDGER),
        (ReadLac(LEDGER), Code.ENOENTRY),
        (FENCE, Code.ENOENTRY),
    ],
    ids=["entry", "last entry", "long poll", "list", "LAC", "fence"],
)
def test_of_a_ledger_never_seen_here_the_code_is_that_of_apache(request_: AnyRequest, expected: Code) -> None:
    """To read the LAC finds no entry there, too; and who fences a ledger makes it known."""

    async def test(node: SimNode) -> None:
        assert await code_of(await Client.connect(node.bookie.port), request_) is expected

    on_a_node(test)


@pytest.mark.parametrize(
    "request_",
    [
        ReadEntry(LEDGER, 0, version=V2),
        ReadEntry(LEDGER, LAST_ENTRY, version=V2),
        BatchRead(LEDGER, 0, 1, 9, 9, version=V2),
    ],
    ids=["entry", "last entry", "batch"],
)
def test_in_the_compact_protocol_there_is_no_such_ledger_either(request_: AnyRequest) -> None:
    async def test(node: SimNode) -> None:
        assert await compact_code_of(node, request_) is Code.ENOLEDGER

    on_a_node(test)


def test_a_ledger_that_was_fenced_before_its_first_entry_has_no_such_entry_and_an_empty_list() -> None:
    async def test(node: SimNode) -> None:
        client = await Client.connect(node.bookie.port)
        await client.ask(FENCE)
        for request in (ReadEntry(LEDGER, 0), ReadEntry(LEDGER, LAST_ENTRY), ReadLac(LEDGER)):
            assert await code_of(client, request) is Code.ENOENTRY
        assert await code_of(client, ListEntries(LEDGER)) is Code.EOK

    on_a_node(test)


def test_a_ledger_in_limbo_has_a_list_though_nothing_of_it_is_left() -> None:
    async def test(node: SimNode) -> None:
        await change_flags(node.bookie._storage, LEDGER, limbo=True)
        client = await Client.connect(node.bookie.port)
        for request in (ReadEntry(LEDGER, 0), ReadEntry(LEDGER, LAST_ENTRY), ReadLac(LEDGER), POLL):
            assert await code_of(client, request) is Code.EUNKNOWNLEDGERSTATE
        assert await code_of(client, ListEntries(LEDGER)) is Code.EOK

    on_a_node(test)


def test_of_a_ledger_that_was_fenced_and_deleted_nothing_is_here_but_its_fence() -> None:
    async def test(node: SimNode) -> None:
        client = await Client.connect(node.bookie.port)
        assert await code_of(client, add(0)) is Code.EOK
        assert await code_of(client, FENCE) is Code.EOK
        await node.stop()
        await node.start()
        await node.bookie._storage.delete_ledger(LEDGER)
        node.bookie.table.forget(LEDGER)
        client = await Client.connect(node.bookie.port)
        for request in (ReadEntry(LEDGER, 0), ReadEntry(LEDGER, LAST_ENTRY), POLL, ListEntries(LEDGER), FENCE):
            assert await code_of(client, request) is Code.ENOLEDGER
        assert await code_of(client, add(1)) is Code.EFENCED
        assert await code_of(client, add(1, recovery=True)) is Code.EOK
        assert await code_of(client, ReadEntry(LEDGER, 0)) is Code.ENOENTRY
        assert await code_of(client, ReadEntry(LEDGER, LAST_ENTRY)) is Code.EOK

    on_a_node(test)


# --- nothing is taken -------------------------------------------------------------------------------------------------


def test_a_read_only_bookie_takes_no_explicit_lac_and_still_fences() -> None:
    async def test(node: SimNode) -> None:
        node.bookie.switch.set(ReadOnlyReason.OPERATOR, True)
        client = await Client.connect(node.bookie.port)
        assert await code_of(client, WRITE_LAC) is Code.EREADONLY
        assert await code_of(client, ReadLac(LEDGER)) is Code.ENOENTRY
        assert not await node.bookie._storage.has_ledger(LEDGER)
        assert await code_of(client, FENCE) is Code.ENOENTRY
        node.bookie.switch.set(ReadOnlyReason.OPERATOR, False)
        assert await code_of(client, add(0)) is Code.EFENCED
        assert await code_of(client, WRITE_LAC) is Code.EOK

    on_a_node(test)
