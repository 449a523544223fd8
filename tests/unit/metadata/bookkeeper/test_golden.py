"""Bytes that Apache's classes wrote (tests/golden): we read every field of them, and write the same."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

from interop.metadata.fields import cookie_fields, ledger_fields, service_info_fields
from magnetar.ids import BookieId, LedgerId
from magnetar.metadata.bookkeeper.cluster import LedgerLayout, decode_layout, encode_layout
from magnetar.metadata.bookkeeper.cookies import decode_cookie, encode_cookie
from magnetar.metadata.bookkeeper.ledger_codec import decode, encode
from magnetar.metadata.bookkeeper.paths import ledger_path_below_root
from magnetar.metadata.bookkeeper.service_info import decode_service_info, encode_service_info
from tests.rows import Test, every_row

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parents[3] / "golden" / "bookkeeper-metadata.json").read_text())


def cases(kind: str) -> Callable[[Test], Test]:
    return every_row("case", GOLDEN[kind], ids=[case["name"] for case in GOLDEN[kind]])


@cases("ledgers")
def test_ledger_metadata_that_apache_wrote_has_every_field(case: dict[str, Any]) -> None:
    ledger_id = LedgerId(case["fields"]["ledgerId"])
    metadata = decode(ledger_id, b64decode(case["value"]), node_created_ms=GOLDEN["node_ctime"])
    assert ledger_fields(metadata) == case["fields"]


@cases("ledgers")
def test_ledger_metadata_is_written_back_as_apache_wrote_it(case: dict[str, Any]) -> None:
    value = b64decode(case["value"])
    metadata = decode(LedgerId(case["fields"]["ledgerId"]), value, node_created_ms=GOLDEN["node_ctime"])
    if metadata.format_version == 2 and b"\\" in value:
        # Two ways to escape the same bytes in text; both sides read both.
        assert decode(metadata.ledger_id, encode(metadata), node_created_ms=GOLDEN["node_ctime"]) == metadata
    else:
        assert encode(metadata) == value


@cases("cookies")
def test_a_cookie_that_apache_wrote_has_every_field_and_is_written_back(case: dict[str, Any]) -> None:
    cookie = decode_cookie(b64decode(case["value"]))
    assert cookie_fields(cookie) == case["fields"]
    assert decode_cookie(encode_cookie(cookie)) == cookie


def test_a_plain_cookie_is_the_same_bytes_that_apache_wrote() -> None:
    value = b64decode(GOLDEN["cookies"][0]["value"])
    assert encode_cookie(decode_cookie(value)) == value


@cases("service_infos")
def test_service_info_that_apache_wrote_has_every_field_and_is_written_back(case: dict[str, Any]) -> None:
    info = decode_service_info(BookieId("b"), b64decode(case["value"]))
    assert service_info_fields(info) == case["fields"]
    assert decode_service_info(BookieId("b"), encode_service_info(info)) == info


def test_the_layout_is_the_same_bytes_that_apache_wrote() -> None:
    value = b64decode(GOLDEN["layout"])
    assert encode_layout(LedgerLayout()) == value
    assert decode_layout(value) == LedgerLayout()


def test_ledger_paths_are_those_of_apache() -> None:
    assert {n: "/" + ledger_path_below_root(LedgerId(int(n))) for n in GOLDEN["ledger_paths"]} == GOLDEN["ledger_paths"]
