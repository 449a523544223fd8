"""What a node's value means, as it is shown to people."""

from __future__ import annotations

import pytest

from interop.metadata.samples import COOKIES, FULL, SERVICE_INFOS
from magnetar.metadata.bookkeeper.cluster import LedgerLayout, encode_layout
from magnetar.metadata.bookkeeper.cookies import encode_cookie
from magnetar.metadata.bookkeeper.inspect import describe, readable
from magnetar.metadata.bookkeeper.ledger_codec import encode
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.bookkeeper.service_info import encode_service_info
from magnetar.metadata.store import Node
from tests.rows import every_row

PATHS = BookKeeperPaths()


def node(value: bytes) -> Node:
    return Node(value, 3, 1_000, 2_000)


@every_row(
    ("path", "value", "kind", "part"),
    [
        (PATHS.ledger(FULL.ledger_id), encode(FULL), "ledger", {"state": "CLOSED", "password": "(6 bytes)"}),
        (
            PATHS.cookie(COOKIES["host and port"].bookie_id),
            encode_cookie(COOKIES["host and port"]),
            "cookie",
            {"layout_version": 5},
        ),
        ("/ledgers/available/b:1", b"", "service info", {"properties": {}}),
        ("/ledgers/available/readonly/b", encode_service_info(SERVICE_INFOS["everything"]), "service info", {}),
        ("/ledgers/available/readonly", b"", "empty", {}),
        (PATHS.layout, encode_layout(LedgerLayout()), "layout", {"manager_version": 1}),
        (PATHS.instance_id, b"some-id", "instance id", {"instance_id": "some-id"}),
        ("/admin/clusters/c", b'{"a": 1}', "text", {"value": '{"a": 1}'}),
        ("/elsewhere", b"\x00\xff", "binary", {"value": "0x00ff"}),
        ("/", b"", "empty", {}),
    ],
)
def test_a_value_is_decoded_by_its_path(path: str, value: bytes, kind: str, part: dict[str, object]) -> None:
    found = describe(PATHS, path, node(value))
    assert found.kind == kind
    assert found.problem is None
    assert part.items() <= found.content.items()


def test_a_password_is_shown_only_when_asked_for() -> None:
    path = PATHS.ledger(FULL.ledger_id)
    assert "secret" not in str(describe(PATHS, path, node(encode(FULL))))
    assert describe(PATHS, path, node(encode(FULL)), show_password=True).content["password"] == "secret"


@pytest.mark.parametrize("path", [PATHS.ledger(FULL.ledger_id), PATHS.layout, PATHS.instance_id, "/ledgers/cookies/b"])
def test_a_damaged_value_is_described_with_what_is_wrong(path: str) -> None:
    found = describe(PATHS, path, node(b"\xff"))
    assert found.problem


def test_each_fragment_is_shown_with_its_last_entry() -> None:
    fragments = describe(PATHS, PATHS.ledger(FULL.ledger_id), node(encode(FULL))).content["fragments"]
    assert [(f["first_entry_id"], f["last_entry_id"]) for f in fragments] == [
        (0, 1_000_002),
        (1_000_003, 2_000_005),
        (2_000_006, 2_345_678),
    ]


@pytest.mark.parametrize(
    ("value", "shown"), [(b"a\tb\n", "a\tb\n"), (b"\x1b[2J", "0x1b5b324a"), (b"\xff", "0xff"), (b"", "")]
)
def test_text_is_shown_as_text_and_all_else_in_hexadecimal_digits(value: bytes, shown: str) -> None:
    assert readable(value) == shown
