"""`magnetar config`: what is configured, and by whom."""

from __future__ import annotations

from typing import Any

import typer

from magnetar.cli.options import ConfigFile, Settings, load_effective
from magnetar.cli.output import AsJson, print_json, print_table
from magnetar.config.knobs import Value
from magnetar.config.load import Effective

app = typer.Typer(no_args_is_help=True, help="Show the configuration and where each value comes from.")


@app.command()
def show(config: ConfigFile = None, settings: Settings = None, as_json: AsJson = False) -> None:
    """Print every key with its value and where the value comes from. Secrets are masked."""
    effective = load_effective(config, settings)
    if as_json:
        print_json(as_document(effective))
    else:
        rows = [(setting.key.path, _cell(setting.shown), setting.origin) for setting in effective.settings()]
        print_table(("key", "value", "origin"), rows)


def _cell(value: Value) -> Value:
    return '""' if value == "" else value  # An empty cell would shift the columns for awk.


def as_document(effective: Effective) -> dict[str, dict[str, Any]]:
    """Section → key → value and origin."""
    document: dict[str, dict[str, Any]] = {}
    for setting in effective.settings():
        entry = {"value": setting.shown, "origin": setting.origin}
        document.setdefault(setting.key.section, {})[setting.key.name] = entry
    return document
