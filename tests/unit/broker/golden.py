"""What Apache's classes wrote (tests/golden)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, cast

_FOLDER = Path(__file__).parents[2] / "golden"


@cache
def policies() -> dict[str, str]:
    return cast("dict[str, str]", json.loads((_FOLDER / "pulsar-policies.json").read_text()))


def text(name: str) -> str:
    return policies()[name]


def document(name: str) -> Any:
    return json.loads(text(name))


def binary(name: str) -> bytes:
    return bytes.fromhex(text(name))


@cache
def cluster() -> dict[str, str]:
    return cast("dict[str, str]", json.loads((_FOLDER / "pulsar-cluster.json").read_text()))


@cache
def avro() -> Any:
    return json.loads((_FOLDER / "pulsar-avro.json").read_text())


@cache
def nodes() -> Any:
    """What Pulsar's classes stored in a metadata store, and how they name and compress it."""
    return json.loads((_FOLDER / "pulsar-nodes.json").read_text())


def node(path: str) -> bytes:
    return bytes.fromhex(nodes()["nodes"][path])


@cache
def _entries() -> Any:
    return json.loads((_FOLDER / "pulsar-entries.json").read_text())


def entry(name: str) -> bytes:
    return bytes.fromhex(_entries()["entries"][name])


def names() -> dict[str, str]:
    """Names of cursors and properties that Pulsar's brokers use themselves."""
    return cast("dict[str, str]", _entries()["names"])


def custom_metadata(purpose: str) -> dict[str, bytes]:
    """What Pulsar notes in the metadata of a ledger for this purpose."""
    found = _entries()["custom metadata of ledgers"][purpose]
    return {key: bytes.fromhex(value) for key, value in found.items()}


def read_by_pulsar() -> dict[str, str]:
    """Bytes that we write, in hexadecimal, and what Pulsar's classes read from them."""
    return cast("dict[str, str]", _entries()["read"])
