"""Options that every kind of command has. Imports nothing but typer, so that small commands stay quick."""

from __future__ import annotations

import sys
from typing import Annotated, TypeAlias

import typer

from magnetar.cli.output import EXIT_FAILED
from magnetar.errors import ArgumentError

AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, for use by programs.")]
Yes: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def confirm(question: str, yes: bool) -> None:
    """Returns only if `--yes` was given, or a person at a terminal agrees."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise ArgumentError(f"{question} There is no terminal to ask on: give --yes to confirm")
    if not typer.confirm(question, err=True):
        raise typer.Exit(EXIT_FAILED)
