"""Options that commands share, and the way from them to a configuration and to a log on standard error.

A command takes `config: ConfigFile = None, settings: Settings = None` and calls `load_effective(config, settings)`. A
short command's answer is its output or its error message, so it logs nothing below ERROR unless `logging.level` was
set. A server logs as configured.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, TypeAlias, cast

import typer

from magnetar.config.load import CONFIG_VARIABLE, Assignment, Effective, load
from magnetar.config.root import Config
from magnetar.errors import ConfigError
from magnetar.runtime.logs import LogFormat, setup_logging

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

Given: TypeAlias = Mapping[str, tuple[object, str]]
"""Key → the value of the option that stands for it, None without one, and the option's name."""


def load_effective(
    config: Path | None = None,
    settings: Sequence[str] | None = None,
    given: Given = MappingProxyType({}),
    *,
    environment: Mapping[str, str] | None = None,
) -> Effective:
    """Reads file and environment. `given` are options of a command's own that stand for keys; they win over `--set`."""
    flags = [Assignment(key, str(value), option) for key, (value, option) in given.items() if value is not None]
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


def load_for_short_command(config: Path | None, settings: Sequence[str] | None, given: Given) -> Config:
    effective = load_effective(config, settings, given)
    logging = effective.config.logging
    level = logging.level if "logging.level" in effective.origins else "ERROR"
    setup_logging(level, cast("LogFormat", logging.format), sys.stderr)
    return effective.config


def setup_server_log(effective: Effective) -> None:
    logging = effective.config.logging
    setup_logging(logging.level, cast("LogFormat", logging.format), sys.stderr)
