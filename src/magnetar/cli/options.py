"""Options that commands share, and the way from them to a configuration.

A command takes `config: ConfigFile = None, settings: Settings = None, as_json: AsJson = False` and calls
`load_effective(config, settings)`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from magnetar.cli.flags import AsJson as AsJson
from magnetar.cli.flags import Yes as Yes
from magnetar.cli.flags import confirm as confirm
from magnetar.config.load import CONFIG_VARIABLE, Assignment, Effective, load
from magnetar.errors import ConfigError

CONFIG_FILE_BYTES_MAX = 1_000_000  # No configuration is this long; a wrong path may name something that never ends.

ConfigFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help=f"Configuration file in TOML. Default: the file named by {CONFIG_VARIABLE}."
    ),
]
Settings: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Set one configuration key; may be repeated."),
]


def load_effective(
    config: Path | None = None,
    settings: Sequence[str] | None = None,
    *,
    flags: Sequence[Assignment] = (),
    environment: Mapping[str, str] | None = None,
) -> Effective:
    """Reads file and environment. `flags` are options of a command's own that stand for keys; they win over `--set`."""
    variables = os.environ if environment is None else environment
    path = config or _path_from(variables)
    try:
        return load(
            toml=_read(path) if path else "",
            toml_name=str(path or ""),
            environment=variables,
            flags=[*map(Assignment.parse, settings or ()), *flags],
        )
    except ConfigError as error:
        raise ConfigError(f"{error} (docs/configuration.md lists every key with its range)") from None


def _path_from(variables: Mapping[str, str]) -> Path | None:
    named = variables.get(CONFIG_VARIABLE)
    return Path(named) if named else None


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(CONFIG_FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name.
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"cannot read the configuration file {path}: {reason}") from None
    if len(content) > CONFIG_FILE_BYTES_MAX:
        raise ConfigError(f"the configuration file {path} is longer than {CONFIG_FILE_BYTES_MAX} bytes")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"the configuration file {path} is not UTF-8: byte {error.start}") from None
