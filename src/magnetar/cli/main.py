"""`magnetar`: finds the command and imports only that one, so that `--help` and small commands are quick.

A command group is a line in `COMMANDS`; its module has a `typer.Typer` named `app`. If that has one command only, which
has the group's own name, it is the command itself.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from magnetar.cli.output import EXIT_FAILED, EXIT_INTERRUPTED, print_error
from magnetar.errors import ConfigError, MagnetarError
from magnetar.runtime.collector import importing

COMMANDS = {
    "standalone": ("magnetar.cli.standalone", "Run a broker, a bookie and their metadata in one process."),
    "produce": ("magnetar.cli.produce", "Publish lines of standard input, or arguments."),
    "consume": ("magnetar.cli.consume", "Take messages from a subscription, and print them."),
    "read": ("magnetar.cli.read", "Print what is in a topic."),
    "explain": ("magnetar.cli.explain", "Say what holds delivery, and what keeps a message."),
    "topics": ("magnetar.cli.topics", "List, make, look at and delete topics."),
    "subscriptions": ("magnetar.cli.subscriptions", "List, make, move and delete subscriptions."),
    "namespaces": ("magnetar.cli.namespaces", "List, make and delete namespaces, and set their policies."),
    "tenants": ("magnetar.cli.tenants", "List, make and delete tenants."),
    "pipeline": ("magnetar.cli.pipeline", "Archive, audit, scrub, replay and compact, on Spark."),
    "config": ("magnetar.cli.config", "Show the configuration and where each value comes from."),
    "metadata": ("magnetar.cli.metadata", "Initialise and inspect the metadata of a cluster."),
    "broker": ("magnetar.cli.broker", "Run a broker."),
    "bookie": ("magnetar.cli.bookie", "Run a storage node, and look after it."),
    "ledger": ("magnetar.cli.ledger", "Make, write, read, follow, recover and delete ledgers."),
    "dev": ("magnetar.cli.dev", "Servers for development on this machine."),
}
"""Name → module, and the line that `--help` shows without importing it."""


class Listed(TyperGroup):
    """A command group as `--help` lists it; the module behind it is not imported."""

    def load(self) -> Any:
        module, _ = COMMANDS[str(self.name)]
        with importing():
            app = importlib.import_module(module).app
        names = [getattr(command.callback, "__name__", "") for command in app.registered_commands]
        loaded = typer.main.get_command(app) if names == [self.name] else typer.main.get_group(app)
        loaded.name = self.name
        return loaded


class LazyGroup(TyperGroup):
    """The root: help and suggestions see what is listed, only running a command (or completing it) loads it."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {name: Listed(name=name, help=summary) for name, (_, summary) in COMMANDS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, Listed) else command, rest


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # Prepared for a person's terminal; a bug's plain traceback is better in a log.
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version  # Costs as much as all else together, and is rarely asked for.

        print(f"magnetar {version('magnetar')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """A message streaming platform with the architecture of Apache Pulsar."""


def main() -> None:
    """Every way out of the program: a number for the shell, and for what a user can cause never a traceback."""
    try:
        _run()
    except BrokenPipeError:  # Whoever read our output has left, and wants to hear no more.
        _abandon_stdout()
        sys.exit(EXIT_FAILED)
    except OSError as error:  # What the machine refused, such as a full disk below a redirected stdout.
        _abandon_stdout()
        sys.exit(print_error(MagnetarError(str(error))))


def _run() -> None:
    try:
        app(prog_name="magnetar")
    except MagnetarError as error:
        sys.exit(print_error(error))
    except UnicodeEncodeError as error:
        sys.exit(print_error(_not_text(error)))
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    finally:
        sys.stdout.flush()


def _not_text(error: UnicodeEncodeError) -> ConfigError:
    """For an argument that has bytes which are not UTF-8; else it is a bug, and raised as it came."""
    for argument in sys.argv:
        if error.object[error.start : error.end] in argument:
            return ConfigError(f"{argument!r} is not UTF-8: it cannot be a name, a key or another text")
    raise error


def _abandon_stdout() -> None:
    """What is still buffered must not fail once more when Python flushes it at exit."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    os.close(devnull)


if __name__ == "__main__":
    main()
