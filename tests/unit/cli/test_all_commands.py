"""Rules that hold for every command, whichever is added next: read from the command line's own definitions."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

import magnetar.admin
import magnetar.broker
import magnetar.cli
from magnetar.cli.main import Listed, app
from tests.commands import run_magnetar
from tests.rows import every_row

SERVERS = {"standalone", "broker", "bookie", "autorecovery", "dev zookeeper"}
"""They print one JSON line when they are ready, always."""
SILENT = {
    *(f"topics {name}" for name in ("create", "delete", "grow", "unload", "compact", "terminate", "truncate")),
    *(f"subscriptions {name}" for name in ("create", "delete", "skip", "expire")),
    *(f"namespaces {name}" for name in ("create", "delete", "set-retention", "set-ttl", "set-deduplication")),
    *("namespaces set-backlog-quota", "tenants create", "tenants delete", "isolation set", "isolation delete"),
    *("brokers unload", "brokers split", "groups delete"),
}
"""They do what is asked, and print nothing."""
ODD_WORDS = re.compile(r"\b(whoever|nobody|behind|for ever|so many|so long|so old|told|under way|[Ee]lse)\b")


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    command = command.load() if isinstance(command, Listed) else command
    below = getattr(command, "commands", None) or {}
    if path and (not below or getattr(command, "invoke_without_command", False)):
        yield " ".join(path), command
    for name, each in below.items():
        yield from commands(each, (*path, name))


ALL = dict(commands(typer.main.get_command(app)))
TYPES = {"topic", "namespace", "str", "int", "float", "boolean", "path", "int range", "float range"}
"""As `--help` shows them. A parser's own name, such as `parse`, says nothing."""


def options_of(name: str) -> set[str]:
    return {option for each in ALL[name].params for option in each.opts}


def test_every_command_is_found() -> None:
    assert {"read", "topics create", "bookie cookie get", "ledger ls", "pipeline audit", *SERVERS, *SILENT} <= set(ALL)


def test_every_command_that_prints_takes_json() -> None:
    assert [name for name in ALL if name not in SERVERS | SILENT and "--json" not in options_of(name)] == []


def test_every_command_and_parameter_is_explained_in_plain_words_and_has_a_type_with_a_name() -> None:
    wrong = [name for name, command in ALL.items() if not command.help or ODD_WORDS.search(command.help)]
    for name, command in ALL.items():
        for each in command.params:
            text = getattr(each, "help", None) or ""
            is_plain = text.endswith((".", "…")) and not ODD_WORDS.search(text)
            if each.type.name not in TYPES or not is_plain:
                wrong.append(f"{name} {each.name} <{each.type.name}> {text}")
    assert wrong == []


def test_whatever_destroys_asks_unless_yes_is_given() -> None:
    destroys = [name for name in ALL if re.search("delete|format|limbo|truncate|terminate", name)]
    assert [name for name in destroys if "--yes" not in options_of(name)] == []


PLURAL = re.compile(
    r"\}(?<!_MAX\})(?<!type\.shown\}) (entries|messages|ledgers|topics|partitions|consumers|producers|clients|keys|"
    r"replicas|subscriptions)\b(?!/s)"
)


def test_what_is_counted_may_be_one() -> None:
    """`{count} entries` is wrong for one: counted() is for that. Shares, as in `2 of {n} entries`, are exempt."""
    folders = (magnetar.cli, magnetar.broker, magnetar.admin)
    sources = [path for folder in folders for path in Path(folder.__path__[0]).rglob("*.py")]
    lines = [(path.name, line.strip()) for path in sources for line in path.read_text().splitlines()]
    assert [each for each in lines if PLURAL.search(re.sub(r"of \{[^}]*\} \w+", "", each[1]))] == []


# --- exit codes -------------------------------------------------------------------------------------------------------

WRONG = {
    "unknown command": ("frob",),
    "unknown option": ("topics", "list", "--frob"),
    "missing argument": ("read",),
    "name of a topic": ("topics", "stats", "a/b"),
    "name of a topic to read": ("read", "a/b"),
    "name of a topic to produce to": ("produce", "a/b", "x"),
    "name of a namespace": ("topics", "list", "a/b/c"),
    "name of a namespace that is set": ("namespaces", "policies", "a"),
    "place": ("read", "t", "--from", "yesterday"),
    "place to seek to": ("subscriptions", "seek", "t", "s", "--to", "yesterday"),
    "place to begin": ("subscriptions", "create", "t", "s", "--to", "yesterday"),
    "type": ("consume", "t", "s", "--type", "frob"),
    "compression": ("produce", "t", "x", "--compression", "frob"),
    "property without a name": ("produce", "t", "x", "--property", "=a"),
    "address": ("read", "t", "--url", "frob"),
    "admin address": ("topics", "list", "--admin-url", "frob"),
    "nothing to skip": ("subscriptions", "skip", "t", "s"),
    "nobody to ask": ("topics", "delete", "t"),
    "setting": ("config", "show", "--set", "frob.x=1"),
    "value of a setting": ("config", "show", "--set", "bookie.port=frob"),
    "file of settings": ("config", "show", "--config", "/nowhere.toml"),
    "store": ("metadata", "ls", "--metadata", "frob:x"),
    "digest": ("ledger", "create", "--digest", "frob"),
    "state": ("ledger", "ls", "--state", "frob"),
    "servers": ("dev", "zookeeper", "--servers", "2"),
    "bookies": ("standalone", "--bookies", "frob"),
    "port": ("standalone", "--port", "-1"),
    "nowhere to compact to": ("pipeline", "compact", "t"),
}


@every_row("words", WRONG.values(), ids=WRONG)
def test_what_is_asked_wrongly_exits_with_2_and_one_line(words: tuple[str, ...]) -> None:
    done = run_magnetar(*words)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.startswith("magnetar: error: ")
    assert done.stderr.count("\n") == 1


def arguments_of(name: str) -> list[str]:
    """Something for each argument, and for options without which the command does not begin."""
    extra = {
        "topics grow": ["--partitions", "2"],
        "subscriptions seek": ["--to", "latest"],
        "subscriptions skip": ["--all"],
        "subscriptions expire": ["--older-than", "1"],
        "namespaces set-retention": ["--minutes", "1"],
        "namespaces set-ttl": ["--seconds", "1"],
        "namespaces set-deduplication": ["--on"],
        "namespaces set-backlog-quota": ["--megabytes", "1"],
        "explain": ["s"],
        "isolation set": ["--namespace", "a/b", "--primary", "h"],
    }.get(name, [])
    yes = ["--yes"] if "--yes" in options_of(name) else []
    arguments = [each for each in ALL[name].params if each.param_type_name == "argument" and each.required]
    given = {"bundle": "a/b/0x00000000_0xffffffff"}
    kinds = {"namespace": "a/b"}
    return [*(given.get(each.name) or kinds.get(each.type.name, "t") for each in arguments), *extra, *yes]


@every_row("name", sorted(name for name in ALL if "--admin-url" in options_of(name) and "pipeline" not in name))
def test_a_command_without_a_cluster_says_how_to_get_one(name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = taken.getsockname()[1]  # Refuses connections as soon as the server is closed.
    done = run_magnetar(
        *name.split(), *arguments_of(name),
        MAGNETAR_URL=f"pulsar://127.0.0.1:{free}", MAGNETAR_ADMIN_URL=f"http://127.0.0.1:{free}",
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert "start `magnetar standalone`, or say where the broker is with --" in done.stderr
    assert done.stderr.count("\n") == 1
