"""Answers near the limit of a frame: what was accepted can be read in every way, and what does not fit is a failure."""

from __future__ import annotations

import struct

import pytest

from magnetar.bookie.reads import sendable_parts
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.ends import decode_response, encode_request
from magnetar.wire.bookkeeper.frames import ENTRY_BYTES_MAX, FRAME_BYTES_MAX, LAST_ENTRY
from magnetar.wire.bookkeeper.messages import (
    V2,
    AddEntry,
    AnyRequest,
    AnyResponse,
    BatchRead,
    BatchReadResponse,
    ListEntries,
    ListEntriesResponse,
    ReadEntry,
    ReadLac,
    ReadLacResponse,
    ReadResponse,
    WriteLac,
)
from tests.unit.bookie.node_story import DIGEST, KEY
from tests.unit.bookie.one_node import on_a_node
from tests.unit.bookie.sim_node import Client, SimNode
from tests.unit.bookie.test_limits import Reader

ID = 2**63 - 1
TXN = 2**64 - 1
ROOMY = {
    "journal": {
        "file_bytes_max": 2**26,
        "group_bytes_max": 2**22,
        "queue_bytes_max": 2**26,
        "queue_entries_max": 10_000,
    },
    "storage": {"write_cache_bytes_max": 2**26},
    "bookie": {"adds_in_progress_max": 100_000, "pending_adds_per_writer_max": 100_000},
}
"""For entries larger than all that the other tests have."""


def entry(ledger_id: int, entry_id: int, size: int, lac: int = -1) -> bytes:
    payload = bytes(size - DIGEST.overhead_bytes)
    return DIGEST.seal(ledger_id, entry_id, lac, len(payload), payload) + payload


def sent(request: AnyRequest, answer: AnyResponse) -> AnyResponse:
    """What the client makes of it."""
    frame = b"".join(sendable_parts(request, answer))
    assert len(frame) <= FRAME_BYTES_MAX
    decoded = decode_response(frame, 0, len(frame), answer.version)
    assert decoded is not None
    return decoded.response


# --- one entry --------------------------------------------------------------------------------------------------------

LARGEST = entry(ID, ID, ENTRY_BYTES_MAX, lac=7)
ANSWERS: list[tuple[AnyRequest, AnyResponse]] = [
    (ReadEntry(ID, LAST_ENTRY, version=V2), ReadResponse(Code.EOK, ID, LAST_ENTRY, LARGEST, version=V2)),
    (BatchRead(ID, ID, ID, 9, ID, version=V2), BatchReadResponse(Code.EOK, ID, ID, ID, [LARGEST], version=V2)),
    (ReadEntry(ID, LAST_ENTRY, txn_id=TXN), ReadResponse(Code.EOK, ID, LAST_ENTRY, LARGEST, -1, ID, txn_id=TXN)),
    (ReadLac(ID, txn_id=TXN), ReadLacResponse(Code.EOK, ID, None, LARGEST, txn_id=TXN)),
]


@pytest.mark.parametrize(("request_", "answer"), ANSWERS)
def test_the_largest_entry_fits_the_answer_to_every_read_whatever_the_ids(
    request_: AnyRequest, answer: AnyResponse
) -> None:
    told = sent(request_, answer)
    assert told.code is Code.EOK
    match told:
        case ReadResponse():
            assert told.body == LARGEST
        case BatchReadResponse():
            assert told.bodies == [LARGEST]
        case ReadLacResponse():
            assert told.last_entry_body == LARGEST
        case _:
            raise AssertionError(told)


@pytest.mark.parametrize(("explicit_lac", "is_kept"), [(6, False), (7, True), (8, True)])
def test_of_two_lacs_that_do_not_fit_together_the_greater_is_sent(explicit_lac: int, is_kept: bool) -> None:
    body = struct.pack(">qq", ID, explicit_lac).ljust(1_000, b"d")
    told = sent(ReadLac(ID, txn_id=9), ReadLacResponse(Code.EOK, ID, body, LARGEST, txn_id=9))
    expected = (body, None) if is_kept else (None, LARGEST)
    assert isinstance(told, ReadLacResponse)
    assert (told.code, told.lac_body, told.last_entry_body) == (Code.EOK, *expected)


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (ListEntries(5, txn_id=9), ListEntriesResponse(Code.EOK, 5, bytes(FRAME_BYTES_MAX), txn_id=9)),
        (ReadEntry(5, 1, txn_id=9), ReadResponse(Code.EOK, 5, 1, bytes(FRAME_BYTES_MAX - 28), txn_id=9)),
        (BatchRead(5, 1, 9, 2, 3, version=V2), BatchReadResponse(Code.EOK, 5, 1, 9, [LARGEST] * 2, version=V2)),
    ],
)
def test_an_answer_that_no_frame_can_carry_is_a_failure(request_: AnyRequest, answer: AnyResponse) -> None:
    told = sent(request_, answer)
    assert (type(told), told.code, told.txn_id) == (type(answer), Code.EIO, answer.txn_id)


def test_the_largest_entry_that_a_bookie_takes_can_be_read_in_every_way() -> None:
    largest = entry(5, 0, ENTRY_BYTES_MAX)

    async def test(node: SimNode) -> None:
        compact, client = await Reader.connect(node), await Client.connect(node.bookie.port)
        compact.write(encode_request(AddEntry(5, 1, KEY, entry(5, 1, ENTRY_BYTES_MAX + 1), version=V2)))
        assert [answer.code for answer in await compact.answers(1)] == [Code.EBADREQ]
        compact.write(encode_request(AddEntry(5, 0, KEY, largest, version=V2)))
        assert [answer.code for answer in await compact.answers(1)] == [Code.EOK]
        assert (await client.ask(WriteLac(5, 0, KEY, DIGEST.seal_lac(5, 0)))).code is Code.EOK
        for read in (
            ReadEntry(5, 0),
            ReadEntry(5, LAST_ENTRY),
            ReadEntry(5, LAST_ENTRY, previous_lac=-1, piggyback=True),
        ):
            answer = await client.ask(read)
            assert isinstance(answer, ReadResponse)
            assert (answer.code, answer.body == largest) == (Code.EOK, True)
        assert (await client.ask(ReadLac(5))).code is Code.EOK
        compact.write(encode_request(BatchRead(5, 0, 9, 0, 5 * 2**20, version=V2)))
        (batch,) = await compact.answers(1)
        assert isinstance(batch, BatchReadResponse)
        assert (batch.code, batch.bodies == [largest]) == (Code.EOK, True)
        compact.send(5, range(1))
        (plain,) = await compact.answers(1)
        assert isinstance(plain, ReadResponse)
        assert plain.body == largest
        compact.close()
        client.close()

    on_a_node(test, **ROOMY)


# --- batches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry_bytes", "stored", "bytes_max", "expected"),
    [
        (100, 40, 36 + 10 * 104, 10),
        (100, 40, 36 + 10 * 104 - 1, 9),
        (100, 40, 36, 1),
        (1_000, 5_300, 5 * 2**20, (5 * 2**20 - 36) // 1_004),
        (3_000, 1_800, 5 * 2**20, (5 * 2**20 - 36) // 3_004),
        (100, 40, 0, 40),
    ],
)
def test_the_frame_of_a_batch_has_as_many_entries_as_fit_its_limit(
    entry_bytes: int, stored: int, bytes_max: int, expected: int
) -> None:
    """5 MiB is what Apache's client requests, and the largest frame that it takes, unless configured otherwise."""

    async def test(node: SimNode) -> None:
        reader = await Reader.connect(node)
        for first in range(0, stored, 100):
            adds = [AddEntry(5, one, KEY, entry(5, one, entry_bytes), version=V2) for one in range(first, first + 100)]
            adds = adds[: stored - first]
            reader.write(b"".join(map(encode_request, adds)))
            assert {answer.code for answer in await reader.answers(len(adds))} == {Code.EOK}
        reader.write(encode_request(BatchRead(5, 0, 77, 0, bytes_max, version=V2)))
        (answer,) = await reader.answers(1)
        assert isinstance(answer, BatchReadResponse)
        assert (answer.code, answer.request_id, len(answer.bodies)) == (Code.EOK, 77, expected)
        reader.close()

    on_a_node(test, **ROOMY)
