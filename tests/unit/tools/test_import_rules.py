"""Each import rule catches what it is for; the real tree is clean."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rows import every_row
from tools import import_rules
from tools.import_rules import ROWS, check_source, check_tree


def rules_broken_by(text: str, path: str) -> list[str]:
    return [finding.rule for finding in check_source(text, path)]


@every_row(
    ("path", "text"),
    [
        ("runtime/disk.py", "from magnetar.storage.journal.journal import Journal"),
        ("runtime/disk.py", "import magnetar.storage.journal.journal"),
        ("runtime/disk.py", "from magnetar import storage"),
        ("errors.py", "from magnetar.runtime.disk import Disk"),
        ("metadata/store.py", "from magnetar.bookie import server"),
        ("metadata/zookeeper/store.py", "from ...bookie.server import Server"),
        ("metadata/__init__.py", "from ..bookie import server"),
        ("metadata/store.py", "def f():\n    from magnetar.bookie import server"),
        ("metadata/store.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from magnetar.bookie import x"),
        ("metadata/store.py", "from importlib import import_module\nx = import_module('magnetar.bookie.server')"),
        ("testing/processes/zookeeper.py", "from magnetar.cli.main import main"),
        ("__init__.py", "from magnetar.cli import main"),
    ],
)
def test_import_of_a_row_below_is_found(path: str, text: str) -> None:
    assert rules_broken_by(text, path) == ["downward"]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("bookie/server.py", "from magnetar.metadata.store import Store\nfrom magnetar.errors import MagnetarError"),
        ("bookie/server.py", "from magnetar.bookie.fence import Fence\nfrom . import cache\nfrom .cache import Cache"),
        ("errors.py", "from magnetar.ids import LedgerId"),
        ("ids.py", "from magnetar.config.load import load\nfrom magnetar.errors import ConfigError"),
        ("testing/processes/zookeeper.py", "from magnetar.admin import rest\nfrom magnetar.testing import waiting"),
        ("cli/main.py", "from magnetar import __version__\nfrom magnetar.testing import zookeeper"),
        ("__main__.py", "from magnetar.cli.main import main"),
        ("metadata/__init__.py", "from .store import Store"),
    ],
)
def test_import_of_a_row_above_or_of_itself_is_allowed(path: str, text: str) -> None:
    assert rules_broken_by(text, path) == []


def test_rooms_of_a_folder_keep_to_their_rows() -> None:
    reader = "from magnetar.ledger.reading.reader import LedgerReader"
    assert rules_broken_by(reader, "ledger/writing/engine.py") == ["rooms"]
    assert rules_broken_by(reader, "ledger/channels/bookies.py") == ["rooms"]
    assert rules_broken_by(reader, "ledger/recovery/recovery.py") == []
    assert rules_broken_by(reader, "ledger/client.py") == []
    assert rules_broken_by(reader, "ledger/reading/tailing.py") == []
    assert rules_broken_by("from magnetar.ledger.context import LedgerContext", "ledger/channels/bookies.py") == []


@every_row("upper", range(len(ROWS)))
def test_every_row_is_held_against_every_row_below(upper: int) -> None:
    for below in range(upper + 1, len(ROWS)):
        for target in ROWS[below]:
            found = rules_broken_by(f"import magnetar.{target}.x", f"{ROWS[upper][0]}/a.py")
            assert found == ["island" if target == "spark" else "downward"]


def test_folders_of_one_row_stay_apart() -> None:
    assert rules_broken_by("import magnetar.sim.loop", "testing/a.py") == ["sideways"]


@pytest.mark.parametrize("path", ["cli/main.py", "testing/a.py", "admin/rest.py", "lab/a.py"])
def test_nothing_imports_spark(path: str) -> None:
    assert rules_broken_by("from magnetar.spark.source import Source", path) == ["island"]


def test_the_command_line_imports_spark_inside_functions() -> None:
    inside = "def f():\n    if True:\n        from magnetar.spark.source import Source"
    assert rules_broken_by(inside, "cli/pipeline.py") == []
    assert rules_broken_by(inside, "testing/a.py") == ["island"]
    hidden = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from magnetar.spark import source"
    assert rules_broken_by(hidden, "cli/pipeline.py") == ["island"]


def test_spark_may_import_itself_and_what_is_above() -> None:
    assert rules_broken_by("import magnetar.spark.x, magnetar.ledger.y\nimport pyspark", "spark/source.py") == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("wire/pulsar/frame.py", "from magnetar.wire.kafka import records"),
        ("wire/pulsar/frame.py", "from magnetar.wire.bookkeeper.add import Add"),
        ("wire/pulsar/frame.py", "from ..kafka import records"),
        ("wire/varint.py", "from magnetar.wire.kafka import records"),
        ("wire/__init__.py", "from magnetar.wire import pulsar"),
    ],
)
def test_codecs_do_not_import_each_other(path: str, text: str) -> None:
    assert rules_broken_by(text, path) == ["codecs-apart"]


def test_codec_may_import_itself_and_what_lies_directly_in_wire() -> None:
    text = "from magnetar.wire.pulsar.frame import Frame\nfrom magnetar.wire.varint import read\nfrom . import commands"
    assert rules_broken_by(text, "wire/pulsar/producer.py") == []
    assert rules_broken_by("from magnetar.wire.kafka import x\nimport magnetar.wire.pulsar.y", "admin/a.py") == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("broker/topics/topic.py", "from magnetar.wire.pulsar.entry import parse_entry"),
        ("broker/dispatch/shared.py", "from magnetar.wire import pulsar"),
        ("broker/kafka/produce.py", "from magnetar.wire.pulsar.entry import parse_entry"),
        ("topic/log/log.py", "import magnetar.wire.pulsar.entry"),
        ("topic/__init__.py", "from ..wire.kafka import records"),
        ("ledger/writing/writer.py", "from magnetar.wire.kafka import records"),
        ("broker/broker.py", "from magnetar.broker.pulsar.front_end import PulsarFrontEnd"),
        ("broker/kafka/fetch.py", "from magnetar.broker.pulsar.session import Session"),
    ],
)
def test_core_does_not_know_the_protocols_of_clients(path: str, text: str) -> None:
    assert rules_broken_by(text, path) == ["core"]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("broker/pulsar/send.py", "from magnetar.wire.pulsar.entry import parse_entry"),
        ("broker/kafka/produce.py", "from magnetar.wire.kafka import records\nfrom magnetar.broker.kafka import codes"),
        ("broker/pulsar/front_end.py", "from magnetar.broker.pulsar.session import Session"),
        ("topic/entry_format/head.py", "import magnetar.wire.pulsar.entry, magnetar.wire.kafka.records"),
        ("cli/node.py", "from magnetar.broker.pulsar.front_end import PulsarFrontEnd"),
        ("client/producing/producer.py", "from magnetar.wire.pulsar.entry import parse_entry"),
        ("topic/log/log.py", "from magnetar.wire.bookkeeper.frames import Buffer"),
    ],
)
def test_front_ends_entry_formats_and_clients_know_their_protocol(path: str, text: str) -> None:
    assert rules_broken_by(text, path) == []


@pytest.mark.parametrize(
    "text", ["import asyncio", "from asyncio import Future", "def f():\n    import asyncio.streams"]
)
def test_codecs_do_not_import_asyncio(text: str) -> None:
    assert rules_broken_by(text, "wire/pulsar/frame.py") == ["sans-io"]
    assert rules_broken_by(text, "bookie/server.py") == []


@pytest.mark.parametrize(
    ("text", "allowed", "refused"),
    [
        ("from kazoo.client import KazooClient", "metadata/zookeeper/store.py", "bookie/server.py"),
        ("def f():\n    import kazoo", "metadata/zookeeper/store.py", "testing/processes/zookeeper.py"),
        ("import pyspark.sql", "spark/source.py", "topic/chain.py"),
        ("import pyspark", "testing/processes/zookeeper.py", "cli/dev.py"),
    ],
)
def test_third_party_package_stays_where_it_belongs(text: str, allowed: str, refused: str) -> None:
    assert rules_broken_by(text, allowed) == []
    assert rules_broken_by(text, refused) == ["third-party"]


def test_folder_that_is_not_in_the_table_is_found_from_both_sides() -> None:
    assert rules_broken_by("", "helpers/a.py") == ["unknown-folder"]
    assert rules_broken_by("", "helpers.py") == ["unknown-folder"]
    assert rules_broken_by("from magnetar.helpers import x", "bookie/a.py") == ["unknown-folder"]


def test_finding_has_the_line_and_says_what_to_do() -> None:
    (finding,) = check_source("\n\nimport magnetar.cli.main\n", "bookie/a.py")
    assert finding.line == 3
    assert "pass it in, or move the code" in finding.message


def test_command_prints_place_and_rule_and_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "quorum").mkdir()
    (tmp_path / "quorum" / "a.py").write_text("import magnetar.cli\n")
    monkeypatch.setattr(import_rules, "check_tree", lambda: check_tree(tmp_path))
    assert import_rules.main() == 1
    assert f"{tmp_path}/quorum/a.py:1: downward: quorum/ is above cli/" in capsys.readouterr().out


def test_real_tree_is_clean() -> None:
    assert check_tree() == []
