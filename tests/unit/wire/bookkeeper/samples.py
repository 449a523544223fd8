"""What the tests of this folder share: Apache-made bytes, and strategies for every message of both versions."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from hypothesis import strategies as st

from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.ends import encode_request
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
    StartTls,
    StartTlsResponse,
    WriteLac,
    WriteLacResponse,
)

GOLDEN_FILE = Path(__file__).parents[3] / "golden" / "bookkeeper-frames.json"
LEDGER = 0x0102030405060708  # The values in BookkeeperFrames.java.
ENTRY, LAC, LENGTH, TXN = 77, 75, 123456, 99
PAYLOAD = b"payload"
KEY = bytes.fromhex("e793cbc379107648537183605cd361d3bb789a39")


def golden() -> dict[str, bytes]:
    return {name: bytes.fromhex(value) for name, value in json.loads(GOLDEN_FILE.read_text()).items()}


def entry_body(ledger_id: int, entry_id: int, *, lac: int = -1, rest: bytes = b"") -> bytes:
    return struct.pack(">qqq", ledger_id, entry_id, lac) + rest


def add_frame(ledger_id: int, entry_id: int, *, key: bytes = KEY, lac: int = -1, rest: bytes = b"") -> bytes:
    return encode_request(
        AddEntry(ledger_id, entry_id, key, entry_body(ledger_id, entry_id, lac=lac, rest=rest), version=2)
    )


_ids = st.integers(0, 2**63 - 1)
_signed = st.integers(-(2**63), 2**63 - 1)
_read_ids = st.one_of(st.just(-1), _ids)
_keys = st.binary(min_size=20, max_size=20)
_blobs = st.binary(max_size=40)
_codes = st.sampled_from(Code)
_failures = st.sampled_from([code for code in Code if code is not Code.EOK])
_names = st.text(max_size=20)


def _add(version: int, **envelope: object) -> st.SearchStrategy[AddEntry]:
    def build(ledger_id: int, entry_id: int, lac: int, rest: bytes, **fields: object) -> AddEntry:
        body = entry_body(ledger_id, entry_id, lac=lac, rest=rest)
        return AddEntry(ledger_id, entry_id, body=body, version=version, **fields)  # type: ignore[arg-type]

    deferred = st.booleans() if version == 3 else st.just(False)
    return st.builds(
        build, _ids, _ids, _signed, _blobs, master_key=_keys, recovery=st.booleans(), deferred_sync=deferred, **envelope
    )


def _write_lac(ledger_id: int, lac: int, rest: bytes, **fields: object) -> WriteLac:
    body = struct.pack(">qq", ledger_id, lac) + rest
    return WriteLac(ledger_id, lac, body=body, **fields)  # type: ignore[arg-type]


_v2 = {"version": st.just(2), "high_priority": st.booleans()}
requests_v2: st.SearchStrategy[AnyRequest] = st.one_of(
    _add(2, high_priority=st.booleans()),
    st.builds(ReadEntry, _ids, _read_ids, **_v2),
    st.builds(ReadEntry, _ids, _read_ids, fence=st.just(True), master_key=_keys, **_v2),
    st.builds(BatchRead, _ids, _ids, _signed, st.integers(-(2**31), 2**31 - 1), _signed, **_v2),
    st.builds(BatchRead, _ids, _ids, _signed, st.just(9), _ids, fence=st.just(True), master_key=_keys, **_v2),
    st.builds(Auth, _names, _blobs, version=st.just(2)),
)

_txn = {"txn_id": st.integers(0, 2**64 - 1)}
_v3 = {**_txn, "high_priority": st.booleans()}
requests_v3: st.SearchStrategy[AnyRequest] = st.one_of(
    _add(3, **_v3),
    st.builds(ReadEntry, _ids, _read_ids, **_v3),
    st.builds(ReadEntry, _ids, _read_ids, fence=st.just(True), master_key=_keys, **_v3),
    st.builds(
        ReadEntry,
        _ids,
        st.just(-1),
        previous_lac=_signed,
        timeout_ms=st.one_of(st.none(), _ids),
        piggyback=st.booleans(),
        **_v3,
    ),
    st.builds(ReadLac, _ids, **_v3),
    st.builds(_write_lac, _ids, _signed, _blobs, master_key=_keys, **_v3),
    st.builds(ForceLedger, _ids, **_v3),
    st.builds(GetBookieInfo, _signed, **_v3),
    st.builds(ListEntries, _ids, **_v3),
    st.builds(Auth, _names, _blobs, **_v3),
    st.builds(StartTls, **_v3),
)

_in_v2 = {"version": st.sampled_from([0, 1, 2])}
responses_v2: st.SearchStrategy[AnyResponse] = st.one_of(
    st.builds(AddResponse, _codes, _signed, _signed, **_in_v2),
    st.builds(ReadResponse, _codes, _signed, _signed, _blobs, **_in_v2),
    st.builds(BatchReadResponse, _codes, _signed, _signed, _signed, st.lists(_blobs, max_size=5), **_in_v2),
    st.builds(AuthResponse, st.just(Code.EOK), _names, _blobs, **_in_v2),
)
_maybe = st.one_of(st.none(), _signed)
_maybe_blob = st.one_of(st.none(), _blobs)
responses_v3: st.SearchStrategy[AnyResponse] = st.one_of(
    st.builds(AddResponse, _codes, _signed, _signed, **_txn),
    st.builds(ReadResponse, _codes, _signed, _signed, _blobs, _maybe, _maybe, **_txn),
    st.builds(ReadLacResponse, _codes, _signed, _maybe_blob, _maybe_blob, **_txn),
    st.builds(WriteLacResponse, _codes, _signed, **_txn),
    st.builds(ForceLedgerResponse, _codes, _signed, **_txn),
    st.builds(GetBookieInfoResponse, _codes, _maybe, _maybe, **_txn),
    st.builds(ListEntriesResponse, _codes, _signed, _maybe_blob, **_txn),
    st.builds(AuthResponse, _codes, _names, _blobs, **_txn),
    st.builds(StartTlsResponse, _codes, **_txn),
    st.builds(BareResponse, _failures, st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12]), **_txn),
)
