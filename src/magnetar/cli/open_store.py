"""The metadata store of a command: named by options, opened for as long as the command works on it.

run_on_store(command, load_for_store(metadata, config, settings))
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from magnetar.cli.options import load_for_short_command
from magnetar.cli.output import EXIT_INTERRUPTED
from magnetar.config.root import Config
from magnetar.errors import ConfigError, MetadataError
from magnetar.metadata.bookkeeper.cookies import CookieStore
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.open import open_store
from magnetar.metadata.store import MetadataStore
from magnetar.runtime.event_loop import run
from magnetar.runtime.system import SystemRuntime

Url: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--metadata",
        metavar="URL",
        help="URL of the metadata store: sqlite:PATH or zk://host:2181,host:2181/chroot. Default: metadata.url.",
    ),
]


@dataclass(frozen=True, slots=True)
class Opened:
    store: MetadataStore
    paths: BookKeeperPaths
    runtime: SystemRuntime

    @property
    def cookies(self) -> CookieStore:
        return CookieStore(self.store, self.paths)


def load_for_store(url: str | None, config: Path | None, settings: list[str] | None) -> Config:
    return load_for_short_command(config, settings, {"metadata.url": (url, "--metadata")})


def run_on_store(command: Callable[[Opened], Awaitable[None]], config: Config, *, creates: bool = False) -> None:
    """Runs the command on an open store; a store that does not exist is an error, unless the command `creates` it."""
    _check_url(config.metadata.url, creates)
    runtime = SystemRuntime()

    async def main() -> bool:
        async with await open_store(config, runtime) as store:
            await command(Opened(store, BookKeeperPaths(config.metadata.ledgers_root), runtime))
        return True

    if run(main) is None:
        raise typer.Exit(EXIT_INTERRUPTED)


def _check_url(url: str, creates: bool) -> None:
    scheme, _, rest = url.partition(":")
    if scheme == "memory":
        raise ConfigError(
            "metadata.url is memory:, which is empty at the start of each command: use --metadata "
            "sqlite:PATH or --metadata zk://host:2181"
        )
    if scheme == "sqlite" and rest and not creates and not Path(rest).exists():
        raise MetadataError(f"there is no store at {rest}; make one with: magnetar metadata init --metadata {url}")
