"""`magnetar config show`, and the skeleton around every command: exit codes, messages, what is imported."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from magnetar.cli import main as cli
from magnetar.cli.output import print_error, printable
from magnetar.config.root import KEYS
from magnetar.errors import (
    ArgumentError,
    ConfigError,
    InvalidNameError,
    MagnetarError,
    MalformedPlaceError,
    NoNodeError,
)
from tests.commands import clean_environment, run_magnetar
from tests.rows import every_row

COMMAND = [sys.executable, "-m", "magnetar.cli.main"]
TIMEOUT_S = 60


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


# --- config show ------------------------------------------------------------------------------------------------------


def test_in_a_pipe_every_key_is_one_line_with_value_and_origin() -> None:
    shown = run_magnetar("config", "show", "--set", "logging.level=DEBUG")
    assert shown.returncode == 0
    assert shown.stderr == ""
    lines = shown.stdout.splitlines()
    assert lines[0].split() == ["KEY", "VALUE", "ORIGIN"]
    assert [line.split()[0] for line in lines[1:]] == list(KEYS)
    assert ["logging.level", "DEBUG", "flag", "--set"] in [line.split() for line in lines]
    assert all(len(line.split()) >= 3 for line in lines)


def test_json_shows_values_with_their_types_and_their_origins(tmp_path: Path) -> None:
    file = write(tmp_path / "m.toml", "[metadata]\nsession_timeout_ms = 5_000\n[zookeeper]\ntls = true\n")
    shown = run_magnetar("config", "show", "--json", "--config", file, MAGNETAR_METADATA_URL="memory:")
    document = json.loads(shown.stdout)
    assert document["metadata"]["session_timeout_ms"] == {"value": 5000, "origin": f"file {file}"}
    assert document["metadata"]["url"] == {"value": "memory:", "origin": "environment MAGNETAR_METADATA_URL"}
    assert document["zookeeper"]["tls"] == {"value": True, "origin": f"file {file}"}
    assert document["sqlite"]["group_operations_max"] == {"value": 1000, "origin": "default"}
    assert sorted(f"{section}.{key}" for section in document for key in document[section]) == sorted(KEYS)


def test_the_file_is_also_found_through_the_environment_and_a_named_one_wins(tmp_path: Path) -> None:
    one = write(tmp_path / "one.toml", "[logging]\nlevel = 'ERROR'\n")
    two = write(tmp_path / "two.toml", "[logging]\nlevel = 'DEBUG'\n")
    from_environment = json.loads(run_magnetar("config", "show", "--json", MAGNETAR_CONFIG=one).stdout)
    named = json.loads(run_magnetar("config", "show", "--json", "--config", two, MAGNETAR_CONFIG=one).stdout)
    assert from_environment["logging"]["level"]["value"] == "ERROR"
    assert named["logging"]["level"]["value"] == "DEBUG"


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_secrets_are_masked(form: list[str]) -> None:
    shown = run_magnetar("config", "show", *form, MAGNETAR_ZOOKEEPER_AUTH_DIGEST="magnetar:hunter2")
    assert shown.returncode == 0
    assert "****" in shown.stdout
    assert "hunter2" not in shown.stdout + shown.stderr


def test_on_a_terminal_a_table_is_drawn() -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "config", "show"], env=clean_environment(TERM="xterm", COLUMNS="100"), stdout=theirs
    ) as child:
        os.close(theirs)
        drawn = b""
        while chunk := read_from_terminal(ours):
            drawn += chunk
        assert child.wait(TIMEOUT_S) == 0
    os.close(ours)
    assert "─" in drawn.decode()
    assert "metadata.session_timeout_ms" in drawn.decode()


def read_from_terminal(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # Linux says this way that the other side is closed.
        return b""


# --- mistakes ---------------------------------------------------------------------------------------------------------


def assert_refused(result: subprocess.CompletedProcess[str], *fragments: str) -> None:
    """Exit code 2, and one line that says what is wrong and where the keys are listed."""
    assert result.returncode == 2
    assert result.stdout == ""
    (message,) = result.stderr.splitlines()
    assert message.startswith("magnetar: error: ")
    assert "docs/configuration.md" in message
    for fragment in fragments:
        assert fragment in message


def test_an_unknown_key_ends_in_one_line_and_exit_code_2() -> None:
    assert_refused(
        run_magnetar("config", "show", "--set", "metadata.urll=x"), "metadata.urll", "nearest known key is metadata.url"
    )


def test_an_unknown_variable_ends_in_one_line_and_exit_code_2() -> None:
    assert_refused(run_magnetar("config", "show", MAGNETAR_METADATA_URI="x"), "MAGNETAR_METADATA_URL")


def test_a_value_out_of_range_ends_in_one_line_and_exit_code_2() -> None:
    result = run_magnetar("config", "show", "--json", "--set", "metadata.connect_timeout_ms=0")
    assert_refused(result, "metadata.connect_timeout_ms", "0 is out of range", "1 to 3_600_000", "flag --set")


def test_a_broken_relation_ends_in_one_line_and_exit_code_2() -> None:
    assert_refused(run_magnetar("config", "show", "--set", "zookeeper.acl=creator"), "zookeeper.auth_digest is empty")


@pytest.mark.parametrize(
    ("content", "fragment"),
    [(b"[metadata\n", "line 1"), (b"\xff\xfe", "is not UTF-8"), (b"#" * 1_000_001, "longer than 1000000 bytes")],
)
def test_a_broken_file_ends_in_one_line_and_exit_code_2(tmp_path: Path, content: bytes, fragment: str) -> None:
    file = tmp_path / "broken.toml"
    file.write_bytes(content)
    assert_refused(run_magnetar("config", "show", "--config", str(file)), "broken.toml", fragment)


@pytest.mark.parametrize(("name", "fragment"), [("missing.toml", "No such file"), ("", "Is a directory")])
def test_a_file_that_cannot_be_read_ends_in_one_line_and_exit_code_2(tmp_path: Path, name: str, fragment: str) -> None:
    assert_refused(run_magnetar("config", "show", "--config", str(tmp_path / name)), str(tmp_path), fragment)


def test_a_key_that_would_steer_the_terminal_is_shown_escaped(tmp_path: Path) -> None:
    file = write(tmp_path / "m.toml", '[metadata]\n"\\u001b[2J\\n" = 1\n')
    assert_refused(run_magnetar("config", "show", "--config", file), r"metadata.\x1b[2J\n")


# --- the skeleton -----------------------------------------------------------------------------------------------------


def test_help_lists_every_command_without_importing_any() -> None:
    program = (
        "import sys; from magnetar.cli import main; sys.argv = ['magnetar', '--help']\n"
        "try: main.main()\n"
        "finally:\n"
        " assert not [m for m, _ in main.COMMANDS.values() if m.split(':')[0] in sys.modules]\n"
        " print('none imported')"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=TIMEOUT_S, env=clean_environment()
    )
    assert result.returncode == 0, result.stderr
    assert "none imported" in result.stdout
    for name, (_, summary) in cli.COMMANDS.items():
        assert name in result.stdout
        assert summary in result.stdout


def test_a_command_imports_only_its_own_module() -> None:
    program = (
        "import sys; from magnetar.cli import main; sys.argv = ['magnetar', 'config', 'show']\n"
        "try: main.main()\n"
        "finally: print([n for n, (m, _) in main.COMMANDS.items() if m.split(':')[0] in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=TIMEOUT_S, env=clean_environment()
    )
    assert result.stdout.splitlines()[-1] == "['config']"


def test_commands_of_a_client_do_not_load_what_only_a_bookie_needs() -> None:
    program = (
        "import sys, magnetar.cli.ledger, magnetar.cli.metadata\n"
        "print([m for m in sys.modules if m.startswith(('magnetar.storage', 'magnetar.bookie'))])"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=TIMEOUT_S, env=clean_environment()
    )
    assert result.stdout == "[]\n", result.stderr


@every_row("name", list(cli.COMMANDS))
def test_every_listed_command_can_be_loaded(name: str) -> None:
    result = run_magnetar(name, "--help")
    assert result.returncode == 0, result.stderr
    assert f"magnetar {name}" in result.stdout


def test_version_prints_name_and_version() -> None:
    result = run_magnetar("--version")
    assert result.returncode == 0
    assert result.stdout.startswith("magnetar 0.")


def test_a_mistyped_command_is_wrong_usage() -> None:
    result = run_magnetar("confgi")
    assert result.returncode == 2
    assert "No such command 'confgi'" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])  # Buffered output fails when it is flushed.
def test_a_reader_that_leaves_early_hears_nothing(unbuffered: str) -> None:
    with subprocess.Popen(
        [*COMMAND, "config", "show"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment(PYTHONUNBUFFERED=unbuffered),
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        assert child.stderr.read() == b""
        assert child.wait(TIMEOUT_S) == 0


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_cannot_be_written_is_an_error_in_one_line(unbuffered: str) -> None:
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [*COMMAND, "config", "show"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT_S,
            env=clean_environment(PYTHONUNBUFFERED=unbuffered),
        )
    assert result.returncode == 1
    assert result.stderr == "magnetar: error: [Errno 28] No space left on device\n"


def test_an_interrupt_ends_quietly_with_130(tmp_path: Path) -> None:
    fifo = tmp_path / "never-written.toml"
    os.mkfifo(fifo)
    arguments = [*COMMAND, "config", "show", "--config", str(fifo)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_environment()) as child:
        writer = os.open(fifo, os.O_WRONLY)  # Returns once the command has opened the file and waits for its content.
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=TIMEOUT_S)
        os.close(writer)
    assert (child.returncode, out, err) == (130, b"", b"")


def test_an_error_of_the_program_is_one_line_and_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert print_error(NoNodeError("/ledgers does not exist:\nrun magnetar metadata init")) == 1
    assert capsys.readouterr().err == "magnetar: error: /ledgers does not exist:\\nrun magnetar metadata init\n"


@pytest.mark.parametrize("kind", [ConfigError, ArgumentError, InvalidNameError, MalformedPlaceError])
def test_what_is_asked_wrongly_is_one_line_and_exit_code_2(
    kind: type[MagnetarError], capsys: pytest.CaptureFixture[str]
) -> None:
    assert print_error(kind("--type is one of …")) == 2
    assert capsys.readouterr().err == "magnetar: error: --type is one of …\n"


@pytest.mark.parametrize(
    ("value", "text"),
    [("plain ä", "plain ä"), ("a\x1b[0m", r"a\x1b[0m"), ("a\n", r"a\n"), (True, "true"), (None, "None")],
)
def test_what_is_printed_cannot_steer_a_terminal(value: object, text: str) -> None:
    assert printable(value) == text
