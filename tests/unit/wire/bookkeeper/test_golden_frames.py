"""Against bytes that Apache's own classes made; tests/golden/BookkeeperFrames.java says how."""

from __future__ import annotations

import pytest

from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.ends import RequestDecoder, decode_response, encode_request, encode_response
from magnetar.wire.bookkeeper.messages import (
    AddEntry,
    AddResponse,
    AnyRequest,
    AnyResponse,
    Auth,
    AuthResponse,
    BareResponse,
    BatchRead,
    BatchReadResponse,
    ForceLedger,
    ForceLedgerResponse,
    GetBookieInfo,
    GetBookieInfoResponse,
    ListEntries,
    ListEntriesResponse,
    ReadEntry,
    ReadLac,
    ReadLacResponse,
    ReadResponse,
    Refusal,
    StartTls,
    StartTlsResponse,
    WriteLac,
    WriteLacResponse,
)
from tests.rows import every_row
from tests.unit.wire.bookkeeper.samples import ENTRY, KEY, LAC, LEDGER, PAYLOAD, TXN, golden

FRAMES = golden()
ENTRY_BODY = FRAMES["entry/CRC32C/secret"]
LAC_BODY = FRAMES["lac/CRC32C/secret"]
PLUGIN = "AuthDisabledPlugin"
OK = Code.EOK

REQUESTS: dict[str, AnyRequest] = {
    "v2-add/CRC32C/secret": AddEntry(LEDGER, ENTRY, KEY, ENTRY_BODY, version=2),
    "v2-add-recovery/CRC32C/secret": AddEntry(
        LEDGER, ENTRY, KEY, ENTRY_BODY, recovery=True, version=2, high_priority=True
    ),
    "v2-read": ReadEntry(LEDGER, ENTRY, version=2),
    "v2-read-high-priority": ReadEntry(LEDGER, ENTRY, version=2, high_priority=True),
    "v2-fence": ReadEntry(LEDGER, -1, fence=True, master_key=KEY, version=2),
    "v2-batch-read": BatchRead(LEDGER, ENTRY, 42, 10, 100_000, version=2),
    "v2-batch-read-fence": BatchRead(LEDGER, ENTRY, 42, 10, 100_000, fence=True, master_key=KEY, version=2),
    "v2-auth": Auth(PLUGIN, b"hi", version=2),
    "v3-add": AddEntry(LEDGER, ENTRY, KEY, ENTRY_BODY, txn_id=TXN),
    "v3-add-recovery-deferred": AddEntry(
        LEDGER, ENTRY, KEY, ENTRY_BODY, recovery=True, deferred_sync=True, txn_id=TXN, high_priority=True
    ),
    "v3-read": ReadEntry(LEDGER, ENTRY, txn_id=TXN),
    "v3-fence": ReadEntry(LEDGER, -1, fence=True, master_key=KEY, txn_id=TXN),
    "v3-long-poll": ReadEntry(LEDGER, -1, previous_lac=LAC, timeout_ms=1000, piggyback=True, txn_id=TXN),
    "v3-write-lac": WriteLac(LEDGER, LAC, KEY, LAC_BODY, txn_id=TXN),
    "v3-read-lac": ReadLac(LEDGER, txn_id=TXN),
    "v3-force": ForceLedger(LEDGER, txn_id=TXN),
    "v3-bookie-info": GetBookieInfo(3, txn_id=TXN),
    "v3-list-entries": ListEntries(LEDGER, txn_id=TXN),
    "v3-start-tls": StartTls(txn_id=TXN),
    "v3-auth": Auth(PLUGIN, b"hi", txn_id=TXN),
}
# Apache writes these in the order of its .proto file, where the flag with number 100 comes first; protobuf allows both.
OTHER_ORDER = {"v3-add-recovery-deferred", "v3-fence", "v3-long-poll"}

RESPONSES: dict[str, AnyResponse] = {
    "v2-add-response": AddResponse(OK, LEDGER, ENTRY, version=2),
    "v2-add-response-fenced": AddResponse(Code.EFENCED, LEDGER, ENTRY, version=2),
    "v2-add-response-version-0": AddResponse(OK, LEDGER, ENTRY, version=0),
    "v2-read-response": ReadResponse(OK, LEDGER, ENTRY, PAYLOAD, version=2),
    "v2-read-response-no-entry": ReadResponse(Code.ENOENTRY, LEDGER, ENTRY, version=2),
    "v2-batch-read-response": BatchReadResponse(OK, LEDGER, ENTRY, 42, [PAYLOAD, b"another"], version=2),
    "v2-batch-read-response-no-ledger": BatchReadResponse(Code.ENOLEDGER, LEDGER, ENTRY, 42, [], version=2),
    "v2-auth-response": AuthResponse(OK, PLUGIN, b"hi", version=2),
    "v3-add-response-fenced": AddResponse(Code.EFENCED, LEDGER, ENTRY, txn_id=TXN),
    "v3-read-response": ReadResponse(OK, LEDGER, ENTRY, PAYLOAD, LAC, 1_700_000_000_000, txn_id=TXN),
    "v3-read-response-limbo": ReadResponse(Code.EUNKNOWNLEDGERSTATE, LEDGER, ENTRY, txn_id=TXN),
    "v3-read-lac-response": ReadLacResponse(OK, LEDGER, PAYLOAD, b"last", txn_id=TXN),
    "v3-write-lac-response": WriteLacResponse(OK, LEDGER, txn_id=TXN),
    "v3-force-response": ForceLedgerResponse(OK, LEDGER, txn_id=TXN),
    "v3-bookie-info-response": GetBookieInfoResponse(OK, 1 << 40, 5, txn_id=TXN),
    "v3-list-entries-response": ListEntriesResponse(OK, LEDGER, PAYLOAD, txn_id=TXN),
    "v3-start-tls-response": StartTlsResponse(OK, txn_id=TXN),
    "v3-auth-response": AuthResponse(OK, txn_id=TXN),
    "v3-bad-request-response": BareResponse(Code.EBADREQ, 3, txn_id=TXN),
}
VERSION_5 = "v2-add-response-version-5"


def _decoded_request(frame: bytes) -> AnyRequest | Refusal:
    decoded = RequestDecoder().decode(frame, 0, len(frame))
    assert decoded is not None
    assert decoded.end == len(frame)
    return decoded.request


@every_row("name", REQUESTS)
def test_request_of_apaches_client_is_understood(name: str) -> None:
    assert _decoded_request(FRAMES[name]) == REQUESTS[name]


@every_row("name", sorted(REQUESTS.keys() - OTHER_ORDER))
def test_request_is_encoded_as_apaches_client_does(name: str) -> None:
    assert encode_request(REQUESTS[name]) == FRAMES[name]


@pytest.mark.parametrize("name", sorted(OTHER_ORDER))
def test_request_whose_fields_have_another_order_is_read_by_apache_as_its_own(name: str) -> None:
    frame = encode_request(REQUESTS[name])
    assert FRAMES[f"again/{frame.hex()}"] == FRAMES[name]  # Apache's classes have read it, and written it again.
    assert _decoded_request(frame) == REQUESTS[name]


@every_row("name", RESPONSES)
def test_response_of_apaches_bookie_is_understood_and_encoded_the_same(name: str) -> None:
    frame, expected = FRAMES[name], RESPONSES[name]
    decoded = decode_response(frame, 0, len(frame), 3 if expected.version == 3 else 2)
    assert decoded is not None
    assert decoded.response == expected
    assert encode_response(expected) == frame


def test_add_of_a_future_version_is_refused_in_the_words_of_apaches_bookie() -> None:
    frame = bytearray(FRAMES["v2-add/CRC32C/secret"])
    frame[4] = 5
    refusal = _decoded_request(bytes(frame))
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.answer) == (Code.EBADVERSION, FRAMES[VERSION_5])


@pytest.mark.parametrize("name", ["v3-batch-read", "v3-range-read"])
def test_operation_without_a_server_is_refused_as_a_bad_request(name: str) -> None:
    refusal = _decoded_request(FRAMES[name])
    assert isinstance(refusal, Refusal)
    assert refusal.code is Code.EBADREQ
    if name == "v3-range-read":
        assert refusal.answer == FRAMES["v3-bad-request-response"]


def test_codes_have_apaches_numbers_in_both_versions() -> None:
    numbers = {name: int.from_bytes(value) for name, value in FRAMES.items()}
    assert {f"code/{code.name}": int(code) for code in Code} == {
        name: number for name, number in numbers.items() if name.startswith("code/")
    }
    assert {f"status/{code.name}": code.status for code in Code} == {
        name: number for name, number in numbers.items() if name.startswith("status/")
    }


def test_every_frame_that_apache_made_is_tested() -> None:
    frames = {name for name in FRAMES if name.startswith("v") and not name.startswith("v2-add")}
    assert frames <= {*REQUESTS, *RESPONSES, "v3-batch-read", "v3-range-read"}
