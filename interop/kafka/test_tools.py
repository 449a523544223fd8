"""Kafka's own tools, unchanged, against standalone."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from interop.kafka import tools
from interop.kafka.conftest import Server

LINES = 100
_RATE_LINE = "records/sec"
_TIMEOUT_S = 60


@pytest.fixture(scope="module")
def shell(standalone: Server, directory: Path) -> tools.Tools:
    return tools.Tools(standalone.bootstrap, directory)


def test_kafka_topics_makes_lists_and_extends_a_topic(shell: tools.Tools) -> None:
    shell.run(tools.TOPICS, "--create", "--topic", "by-tool", "--partitions", "3")
    assert "by-tool" in shell.run(tools.TOPICS, "--list").split()
    shell.run(tools.TOPICS, "--alter", "--topic", "by-tool", "--partitions", "5")
    assert [f"by-tool:{number}:0" for number in range(5)] == shell.run(tools.OFFSETS, "--topic", "by-tool").split()


def test_console_tools_carry_lines_and_the_group_and_offset_tools_show_them(shell: tools.Tools) -> None:
    lines = [f"line {number}" for number in range(LINES)]
    shell.run(tools.CONSOLE_PRODUCER, "--topic", "console", given="\n".join(lines) + "\n")
    consumed = shell.run(
        tools.CONSOLE_CONSUMER, "--topic", "console", "--from-beginning", "--group", "console",
        "--max-messages", str(LINES), "--timeout-ms", "30000",
    )  # fmt: skip
    assert consumed.splitlines() == lines
    assert f"console:0:{LINES}" in shell.run(tools.OFFSETS, "--topic", "console").split()
    described = shell.run(tools.GROUPS, "--describe", "--group", "console")
    row = next(line.split() for line in described.splitlines() if line.startswith("console"))
    assert row[1:6] == ["console", "0", str(LINES), str(LINES), "0"]
    assert "console" in shell.run(tools.GROUPS, "--list").split()
    reset = ("--reset-offsets", "--group", "console", "--topic", "console", "--to-offset", "10", "--execute")
    assert "10" in shell.run(tools.GROUPS, *reset).split()
    again = shell.run(
        tools.CONSOLE_CONSUMER, "--topic", "console", "--group", "console", "--max-messages", "1",
        "--timeout-ms", "30000",
    )  # fmt: skip
    assert again.splitlines() == [lines[10]]
    shell.run(tools.GROUPS, "--delete", "--group", "console")
    assert "console" not in shell.run(tools.GROUPS, "--list").split()


def test_producer_performance_reports_a_rate(shell: tools.Tools) -> None:
    report = shell.run(
        tools.PRODUCER_PERFORMANCE, "--topic", "performance", "--num-records", "20000", "--record-size", "100",
        "--throughput", "-1",
    )  # fmt: skip
    assert "20000 records sent" in report
    assert _RATE_LINE in report


def test_a_verifiable_consumer_gets_each_message_of_a_verifiable_producer_once(shell: tools.Tools) -> None:
    sent = shell.run(tools.VERIFIABLE_PRODUCER, "--topic", "verified", "--max-messages", str(LINES))
    events = [json.loads(line) for line in sent.splitlines()]
    assert sorted(int(each["value"]) for each in events if each["name"] == "producer_send_success") == list(
        range(LINES)
    )
    command = shell.command(
        tools.VERIFIABLE_CONSUMER, "--topic", "verified", "--group-id", "verified", "--max-messages", str(LINES),
        "--reset-policy", "earliest", "--verbose",
    )  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    assert done.returncode in (0, -signal.SIGTERM), done.stderr
    seen = [json.loads(line) for line in done.stdout.splitlines()]
    values = [int(each["value"]) for each in seen if each["name"] == "record_data"]
    assert values == list(range(LINES))
    assert any(each["name"] == "offsets_committed" and each["success"] for each in seen)
