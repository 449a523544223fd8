"""The decoders that read what others stored. A new decoder is a line here."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from fuzz import (
    bookkeeper_frames,
    journal_files,
    kafka_frames,
    pulsar_frames,
    pulsar_policies,
    stored_records,
    topic_records,
)
from fuzz.engine import Target
from magnetar.config.load import load
from magnetar.errors import ConfigError, MalformedMetadataError
from magnetar.ids import BookieId, LedgerId
from magnetar.metadata.bookkeeper import ledger_codec
from magnetar.metadata.bookkeeper.cluster import LedgerLayout, decode_layout, encode_layout
from magnetar.metadata.bookkeeper.cookies import decode_cookie, encode_cookie
from magnetar.metadata.bookkeeper.paths import ledger_path_below_root, parse_ledger_path
from magnetar.metadata.bookkeeper.service_info import decode_service_info, encode_service_info
from magnetar.quorum.candidates import parse_bookies_node

T = TypeVar("T")

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden" / "bookkeeper-metadata.json"
_LARGEST_SEED_BYTES = 4_000  # Mutations of a long input mostly hit its dull middle.


def _has_version_line(data: bytes) -> bool:
    return data[:2] in (b"1\n", b"2\n", b"3\n", b"4\n", b"5\n")


def all_targets() -> dict[str, Target]:
    golden = json.loads(GOLDEN.read_text())
    values = {kind: [b64decode(e["value"]) for e in golden[kind]] for kind in ("ledgers", "cookies", "service_infos")}
    targets = [_ledger_target(version, values["ledgers"]) for version in (1, 2, 3)]
    targets += [
        Target(
            "cookie",
            [*values["cookies"], b"3\nb:1\n/j\n2\t/l\t/m\n"],
            _cookie,
            (MalformedMetadataError,),
            _has_version_line,
        ),
        Target("service-info", values["service_infos"], _service_info, (MalformedMetadataError,)),
        Target(
            "layout",
            [encode_layout(LedgerLayout()), b"1\nhierarchical:1"],
            lambda data: _stable(decode_layout, encode_layout, data),
            (MalformedMetadataError,),
            _has_version_line,
        ),
        Target(
            "ledger-path",
            [path[1:].encode() for path in golden["ledger_paths"].values()],
            _ledger_path,
            (MalformedMetadataError,),
        ),
        Target("rack-table", [_RACKS, _RACKS_OF_REGIONS], _rack_table, (MalformedMetadataError,), _is_json),
        Target("config", [_TOML.encode()], _config, (ConfigError,)),
    ]
    targets += bookkeeper_frames.targets() + stored_records.targets() + journal_files.targets()
    targets += pulsar_frames.targets()
    targets += kafka_frames.targets()
    targets += pulsar_policies.targets()
    targets += topic_records.targets()
    return {target.name: target for target in targets}


def _ledger_target(version: int, values: list[bytes]) -> Target:
    header = b"BookieMetadataFormatVersion\t%d\n" % version
    corpus = [value for value in values if value.startswith(header) and len(value) < _LARGEST_SEED_BYTES]
    return Target(
        f"ledger-metadata-v{version}", corpus, _ledger, (MalformedMetadataError,), lambda data: data.startswith(header)
    )


def _ledger(data: bytes) -> object:
    """What was read must be writable, and read as the same again."""
    metadata = ledger_codec.decode(LedgerId(7), data, node_created_ms=1)
    again = ledger_codec.decode(LedgerId(7), ledger_codec.encode(metadata), node_created_ms=1)
    assert again == metadata, "another value after a round"
    return metadata


def _cookie(data: bytes) -> object:
    cookie = decode_cookie(data)
    assert not cookie.differences(decode_cookie(encode_cookie(cookie))), "another cookie after a round"
    return cookie


def _service_info(data: bytes) -> object:
    bookie = BookieId("b:1")
    return _stable(lambda value: decode_service_info(bookie, value), encode_service_info, data)


def _stable(decode: Callable[[bytes], T], encode: Callable[[T], bytes], data: bytes) -> T:
    value = decode(data)
    if data:
        encoded = encode(value)
        assert not encoded or decode(encoded) == value, "another value after a round"
    return value


def _ledger_path(data: bytes) -> object:
    path = data.decode("utf-8", "replace")
    ledger_id = parse_ledger_path(path)
    assert ledger_path_below_root(ledger_id) == path
    return ledger_id


def _rack_table(data: bytes) -> object:
    table = parse_bookies_node(data)
    for key, location in table.by_key.items():
        assert table.location_of(BookieId(key)) == location, "a bookie that is not found under its own name"
        assert location.startswith("/"), "no network location"
    return table


def _is_json(data: bytes) -> bool:
    return data[:1] == b"{"


def _config(data: bytes) -> object:
    return load(toml=data.decode("utf-8", "replace"), toml_name="fuzz.toml")


_RACKS = b'{"default": {"10.0.0.1:3181": {"rack": "/rack-1", "hostname": "b1"}, "b2": {"rack": "rack-2"}}}'
_RACKS_OF_REGIONS = b'{"g1": {"a:1": {"rack": "/eu/r1"}, "b:1": {}}, "g0": {"a:1": {"rack": "/us/r1", "more": [1]}}}'

_TOML = """
[metadata]
url = "zk://127.0.0.1:2181,127.0.0.1:2182/chroot"
session_timeout_ms = 30_000
ledgers_root = "/ledgers"

[logging]
"""
