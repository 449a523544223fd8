"""Options that every kind of command has. Imports nothing but typer, so that small commands stay quick."""

from __future__ import annotations

import sys
from typing import Annotated, TypeAlias

import typer

from magnetar.cli.output import EXIT_FAILED
from magnetar.errors import ArgumentError

AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Force: TypeAlias = Annotated[bool, typer.Option("--force", help="Do not ask.")]


def confirm(question: str, force: bool) -> None:
    """Goes on only if a person says yes, or said `--force`."""
    if force:
        return
    if not sys.stdin.isatty():
        raise ArgumentError(f"{question} Nobody can be asked here: say --force if you mean it")
    if not typer.confirm(question, err=True):
        raise typer.Exit(EXIT_FAILED)
