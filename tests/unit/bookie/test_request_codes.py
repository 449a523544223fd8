"""What a bookie answers when it takes nothing: the codes that Apache's bookie has for it."""

from __future__ import annotations

from magnetar.bookie.read_only import ReadOnlyReason
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.messages import AddEntry, AnyRequest, ReadEntry, ReadLac, WriteLac
from magnetar.wire.bookkeeper.packet import LAST_ENTRY
from tests.unit.bookie.node_story import DIGEST, KEY
from tests.unit.bookie.one_node import on_a_node
from tests.unit.bookie.sim_node import Client, SimNode

LEDGER = 7
FENCE = ReadEntry(LEDGER, LAST_ENTRY, fence=True, master_key=KEY)
WRITE_LAC = WriteLac(LEDGER, 3, KEY, DIGEST.seal_lac(LEDGER, 3))


def add(entry_id: int) -> AddEntry:
    return AddEntry(LEDGER, entry_id, KEY, DIGEST.seal(LEDGER, entry_id, -1, 4, b"data") + b"data")


async def code_of(client: Client, request: AnyRequest) -> Code:
    return (await client.ask(request)).code


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
