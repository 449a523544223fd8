"""What the metadata of a ledger looks like on a terminal."""

from __future__ import annotations

from typing import Any

from magnetar.cli.output import print_json, print_table, printable
from magnetar.metadata.bookkeeper.inspect import ledger_document
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerMetadata


def print_ledger(found: LedgerMetadata, as_json: bool, more: dict[str, Any] | None = None) -> None:
    document = {**ledger_document(found), **(more or {})}
    if as_json:
        print_json(document)
        return
    fragments = document.pop("fragments")
    custom = document.pop("custom_metadata")
    print_fields(document, as_json)
    if custom:
        print()
        print_table(("custom metadata", "value"), list(custom.items()))
    print()
    rows = [
        (f["first_entry_id"], "-" if f["last_entry_id"] is None else f["last_entry_id"], ", ".join(f["bookies"]))
        for f in fragments
    ]
    print_table(("first entry", "last entry", "bookies"), rows)


def print_fields(fields: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(fields)
    else:
        print_table(
            ("field", "value"), [(key, "-" if value is None else printable(value)) for key, value in fields.items()]
        )
