"""`magnetar ledger`: makes, writes, reads, follows, recovers and deletes ledgers on a cluster of bookies.

A ledger has one writer, for its whole life (write.py). read.py and inspect.py leave the writer alone, and show what is
committed. Only `recover` and `delete` (recover.py) take a ledger from its writer.

Format:    Entries and lists are JSON lines with `--json`, because they may be long; single answers are one document.
"""

from __future__ import annotations

import typer

from magnetar.cli.ledger.inspect import info, ls
from magnetar.cli.ledger.read import read, tail
from magnetar.cli.ledger.recover import delete, recover
from magnetar.cli.ledger.write import create, write

app = typer.Typer(no_args_is_help=True, help="Create, write, read, follow, recover and delete ledgers.")
for command in (create, write, read, tail, info, ls, recover, delete):
    app.command()(command)
