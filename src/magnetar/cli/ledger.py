"""`magnetar ledger`: makes, writes, reads, follows, recovers and deletes ledgers on a cluster of bookies.

Writing:   ledger_writing.py; a ledger has one writer, for its whole life.
Reading:   ledger_reading.py, ledger_looking.py; it leaves the writer alone, and shows what is committed.
Ending:    ledger_ending.py; only `recover` and `delete` take a ledger from its writer.
Output:    entries and lists are JSON lines with `--json`, because they may be long; single answers are one document.
"""

from __future__ import annotations

import typer

from magnetar.cli.ledger_ending import delete, recover
from magnetar.cli.ledger_looking import info, ls
from magnetar.cli.ledger_reading import read, tail
from magnetar.cli.ledger_writing import create, write

app = typer.Typer(no_args_is_help=True, help="Make, write, read, follow, recover and delete ledgers.")
for command in (create, write, read, tail, info, ls, recover, delete):
    app.command()(command)
