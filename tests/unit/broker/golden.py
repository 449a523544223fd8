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
