"""What the commands of `magnetar ledger` share: their options, and their client."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from magnetar.cli.open_store import Opened, run_on_store
from magnetar.config.root import Config
from magnetar.errors import ArgumentError
from magnetar.ids import LEDGER_ID_MAX
from magnetar.ledger.client import LedgerClient
from magnetar.metadata.bookkeeper.cluster import read_cluster
from magnetar.wire.bookkeeper.digests import DigestType

Id: TypeAlias = Annotated[
    int, typer.Argument(metavar="ID", min=0, max=LEDGER_ID_MAX, help="Id of the ledger, a number.")
]
Ids: TypeAlias = Annotated[
    list[int], typer.Argument(metavar="ID...", min=0, max=LEDGER_ID_MAX, help="Ids of the ledgers.")
]
Password: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--password", help="Password of the ledger. Other users of this machine may see it: --password-file is safer."
    ),
]
PasswordFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--password-file",
        metavar="FILE",
        help="File with the password of the ledger. The whole content is the password.",
    ),
]
Ensemble: TypeAlias = Annotated[
    int, typer.Option("--ensemble", min=1, help="Number of bookies that the ledger is spread over.")
]
WriteQuorum: TypeAlias = Annotated[
    int | None,
    typer.Option("--write-quorum", min=1, help="Number of bookies that store each entry. Default: the whole ensemble."),
]
AckQuorum: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--ack-quorum",
        min=1,
        help="Number of bookies that must have stored an entry before it is acknowledged. Default: a majority.",
    ),
]
Digest: TypeAlias = Annotated[
    str, typer.Option("--digest", help="Digest that protects each entry: crc32c, crc32, hmac or dummy (none).")
]
GivenId: TypeAlias = Annotated[
    int | None,
    typer.Option("--id", min=0, max=LEDGER_ID_MAX, help="Id of the new ledger. Default: the next id of the cluster."),
]
Custom: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--custom", metavar="KEY=VALUE", help="Custom metadata of the ledger; may be repeated."),
]
First: TypeAlias = Annotated[int, typer.Option("--first", min=0, help="Id of the first entry to print.")]
Raw: TypeAlias = Annotated[
    bool, typer.Option("--raw", help="Print only the payloads without decoding them, each followed by a newline.")
]


def run_with_client(command: Callable[[LedgerClient], Awaitable[None]], config: Config) -> None:
    async def with_client(opened: Opened) -> None:
        await read_cluster(opened.store, opened.paths)  # Else every ledger of an unknown layout would be missing.
        async with LedgerClient(opened.store, config, opened.runtime) as client:
            await command(client)

    run_on_store(with_client, config)


def choices(
    ensemble: int,
    write_quorum: int | None,
    ack_quorum: int | None,
    digest: str,
    custom: list[str] | None,
    password: str | None,
    password_file: Path | None,
) -> dict[str, Any]:
    return {
        "ensemble_size": ensemble,
        "write_quorum": write_quorum,
        "ack_quorum": ack_quorum,
        "digest_type": _digest(digest),
        "password": password_given(password, password_file),
        "custom_metadata": _custom(custom or []),
    }


def password_given(given: str | None, file: Path | None) -> bytes:
    if given is not None and file is not None:
        raise ArgumentError("--password and --password-file exclude each other: give one of them")
    if file is None:
        return os.fsencode(given or "")  # The bytes that were typed, whether they are text or not.
    try:
        return file.read_bytes().rstrip(b"\r\n")
    except OSError as error:
        raise ArgumentError(f"cannot read the password file {file}: {error.strerror}") from None


def _digest(name: str) -> DigestType:
    try:
        return DigestType[name.upper()]
    except KeyError:
        raise ArgumentError(f"--digest {name!r}: use crc32c, crc32, hmac or dummy") from None


def _custom(pairs: list[str]) -> dict[str, bytes]:
    custom: dict[str, bytes] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ArgumentError(f"--custom {pair!r}: write it as KEY=VALUE")
        if not _is_text(key):
            raise ArgumentError(f"--custom {pair!r}: the key has to be UTF-8; only the value may be any bytes")
        custom[key] = os.fsencode(value)
    return custom


def _is_text(argument: str) -> bool:
    """Bytes of an argument that are not text have become characters that cannot be encoded."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        return False
    return True
