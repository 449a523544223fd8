"""`magnetar ledger`: makes, writes, reads, follows, recovers and deletes ledgers on a cluster of bookies.

Format:    Entries and lists are JSON lines with `--json`, because they may be long; single answers are one document.
Read next: write.py, read.py
"""

from __future__ import annotations

import typer

from magnetar.cli.ledger.read import info, ls, read, tail
from magnetar.cli.ledger.write import create, delete, recover, write

app = typer.Typer(no_args_is_help=True, help="Create, write, read, follow, recover and delete ledgers.")
for command in (create, write, read, tail, info, ls, recover, delete):
    app.command()(command)
