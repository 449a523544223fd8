"""Arguments with bytes that are not UTF-8: taken as they are where bytes are meant, refused in words elsewhere."""

from __future__ import annotations

import os

import pytest

from magnetar.cli.ledger.options import choices, password_given
from magnetar.errors import ConfigError
from tests.commands import run_magnetar

RAW = os.fsdecode(b"\xff\xfe")
"""As Python hands such an argument over."""


def custom_metadata(pair: str) -> dict[str, bytes]:
    found: dict[str, bytes] = choices(3, 3, 2, "crc32c", [pair], None, None)["custom_metadata"]
    return found


def test_password_may_be_any_bytes() -> None:
    assert password_given(RAW, None) == b"\xff\xfe"
    assert password_given("größe", None) == "größe".encode()


def test_value_of_custom_metadata_may_be_any_bytes() -> None:
    assert custom_metadata(f"größe={RAW}") == {"größe": b"\xff\xfe"}


def test_key_of_custom_metadata_is_text() -> None:
    with pytest.raises(ConfigError, match="the key has to be UTF-8"):
        custom_metadata(f"{RAW}=value")


@pytest.mark.parametrize("command", ["read", "produce"])
def test_name_that_is_not_text_is_told_plainly(command: str) -> None:
    done = run_magnetar(command, f"topic-{RAW}")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "is not UTF-8" in done.stderr
