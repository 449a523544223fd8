"""`magnetar`: finds the command and imports only that one, so that `--help` and small commands are quick.

A command group is a line in `COMMANDS` with its `typer.Typer`. If that has one command only, which has the group's own
name, it is the command itself.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from magnetar.cli.output import EXIT_DONE, EXIT_INTERRUPTED, EXIT_USAGE, print_error
from magnetar.errors import ArgumentError, ConfigError, MagnetarError
from magnetar.runtime.collector import importing
from magnetar.runtime.descriptors import open_missing_streams

_ClickError: Any = typer.BadParameter.__mro__[2]  # ClickException, wherever this version of typer keeps it.
_HELP_INSTEAD = "NoArgsIsHelpError"  # A class that typer does not export.

COMMANDS = {
    "standalone": ("magnetar.cli.serve:standalone_app", "Run a broker, a bookie and their metadata in one process."),
    "produce": ("magnetar.cli.messages.produce:app", "Publish messages from arguments or standard input."),
    "consume": ("magnetar.cli.messages.receive:consume_app", "Print messages of a subscription, and acknowledge them."),
    "read": ("magnetar.cli.messages.receive:read_app", "Print the messages of a topic."),
    "explain": ("magnetar.cli.admin.explain:app", "Explain why messages are not delivered, or who owns a topic."),
    "topics": ("magnetar.cli.admin.topics:app", "List, create, inspect and delete topics."),
    "subscriptions": ("magnetar.cli.admin.subscriptions:app", "List, create, move and delete subscriptions."),
    "groups": ("magnetar.cli.admin.groups:app", "List, describe, move and delete groups of Kafka clients."),
    "namespaces": ("magnetar.cli.admin.namespaces:app", "List, create and delete namespaces, and set their policies."),
    "tenants": ("magnetar.cli.admin.namespaces:tenants_app", "List, create and delete tenants."),
    "brokers": ("magnetar.cli.admin.brokers:app", "List the brokers of a cluster, and move bundles."),
    "isolation": ("magnetar.cli.admin.isolation:app", "List, set and delete policies that isolate namespaces."),
    "pipeline": ("magnetar.cli.pipeline:app", "Run Spark jobs: archive, audit, scrub, replay and compact."),
    "config": ("magnetar.cli.config:app", "Show the configuration and where each value comes from."),
    "cluster": ("magnetar.cli.cluster:app", "Create the metadata of a cluster of brokers and bookies."),
    "metadata": ("magnetar.cli.metadata:app", "Create the metadata of a cluster of bookies, or inspect it."),
    "broker": ("magnetar.cli.serve:broker_app", "Run a broker. Its bookies and metadata store run elsewhere."),
    "bookie": ("magnetar.cli.bookie.command:app", "Run a bookie (a storage node), or inspect and repair one."),
    "recovery": ("magnetar.cli.recovery:app", "Show and control the repair of ledgers of lost bookies."),
    "autorecovery": ("magnetar.cli.recovery:autorecovery_app", "Run auto-recovery without a bookie."),
    "ledger": ("magnetar.cli.ledger:app", "Create, write, read, follow, recover and delete ledgers."),
    "dev": ("magnetar.cli.dev:app", "Run servers for development on this machine."),
}
"""Name → where its app is, and the line that `--help` shows without importing it."""


class Listed(TyperGroup):
    """A command group as `--help` lists it; its module is not imported."""

    def load(self) -> Any:
        module, _, attribute = COMMANDS[str(self.name)][0].partition(":")
        with importing():
            app = getattr(importlib.import_module(module), attribute)
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

    def invoke(self, ctx: Any) -> Any:
        """Here, since typer would end the process with 1."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # The reader of the output has seen enough, as `head` does.
            _abandon_stdout()
            return EXIT_DONE


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
    open_missing_streams()
    code = _run()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _abandon_stdout()
    except OSError as error:  # Such as a full disk below a redirected standard output.
        _abandon_stdout()
        code = print_error(MagnetarError(str(error)))
    sys.exit(code)


def _run() -> int:
    try:
        result = app(prog_name="magnetar", standalone_mode=False)
        return result if isinstance(result, int) else EXIT_DONE
    except _ClickError as error:
        return _print_usage_error(error)
    except (typer.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except MagnetarError as error:
        return print_error(error)
    except UnicodeEncodeError as error:
        return print_error(_not_text(error))
    except OSError as error:  # What the machine refused.
        _abandon_stdout()
        return print_error(MagnetarError(str(error)))


def _print_usage_error(error: Any) -> int:
    """In one line. A command group without a command prints its help instead."""
    if type(error).__name__ == _HELP_INSTEAD:
        error.show()
        return EXIT_USAGE
    context = getattr(error, "ctx", None)
    command = "magnetar" if context is None else context.command_path
    return print_error(ArgumentError(f"{error.format_message().rstrip('.')} (see `{command} --help`)"))


def _not_text(error: UnicodeEncodeError) -> ConfigError:
    """Reports an argument with bytes that are not UTF-8; any other error is a bug, and raised again."""
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
