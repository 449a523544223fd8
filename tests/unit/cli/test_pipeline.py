"""What `magnetar pipeline` refuses before Spark is started."""

from __future__ import annotations

import socket

import pytest
from typer.testing import CliRunner

from magnetar.cli.admin.client import AdminError
from magnetar.cli.pipeline import _log_file, _parsed, app, default_admin_url, destination, require_cluster
from magnetar.errors import ConfigError, InvalidNameError, SparkFailedError
from magnetar.testing.cluster_thread import MagnetarCluster


@pytest.mark.parametrize("path", ["/a", "./a", "../a", "~/a", "s3a://bucket/a", "file:/a", "hdfs://host/a"])
def test_what_begins_like_a_path_is_a_path(path: str) -> None:
    assert destination(path) == ("", path)


@pytest.mark.parametrize("topic", ["a", "public/default/a", "persistent://public/default/a"])
def test_anything_else_is_a_topic(topic: str) -> None:
    assert destination(topic) == ("persistent://public/default/a", "")


def test_what_is_neither_is_refused() -> None:
    with pytest.raises(InvalidNameError):
        destination("a/b")


@pytest.mark.parametrize(
    ("url", "admin"),
    [("pulsar://host:6650", "http://host:8080"), ("pulsar://[::1]:1", "http://[::1]:8080")],
)
def test_the_admin_interface_is_on_the_same_host(url: str, admin: str) -> None:
    assert default_admin_url(url) == admin


@pytest.mark.parametrize("arguments", [["compact", "t"], ["compact", "t", "--to", "u", "--in-place"]])
def test_compact_wants_one_destination(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, ConfigError)
    assert "--in-place" in str(result.exception)


@pytest.mark.parametrize(
    "arguments",
    [
        ["archive", "t", "/nowhere"],
        ["scrub"],
        ["replay", "/nowhere", "t"],
        ["compact", "t", "--to", "u"],
        ["compact", "t", "--in-place"],
        ["audit", "/nowhere", "--topic", "t"],
    ],
)
def test_a_cluster_that_does_not_answer_is_said_before_spark_is_started(arguments: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = taken.getsockname()[1]
    result = CliRunner().invoke(app, [*arguments, "--admin-url", f"http://127.0.0.1:{free}"])
    assert isinstance(result.exception, AdminError)
    assert "start `magnetar standalone`" in str(result.exception)


def test_any_of_several_addresses_may_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = taken.getsockname()[1]
    with pytest.raises(AdminError, match="no server answers"):
        require_cluster("pulsar://127.0.0.1", f"http://127.0.0.1:{free},127.0.0.1:{free}")
    with MagnetarCluster(1) as cluster:
        require_cluster("pulsar://127.0.0.1", f"http://127.0.0.1:{free},{cluster.admin_url.removeprefix('http://')}")


@pytest.mark.parametrize("setting", ["spark.x", "driver.memory=1g"])
def test_a_setting_that_is_none_of_spark_is_refused(setting: str) -> None:
    with pytest.raises(ConfigError, match=r"spark\.driver\.memory=4g"):
        _parsed([setting])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["audit", "x", "--order", "never"], "producer, key or none"),
        (["scrub", "--disk", "/nowhere"], "too little to measure"),
        (["compact", "t", "--to", "t"], "into itself"),
    ],
)
def test_what_is_wrong_is_said_before_spark_is_started(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, ConfigError)
    assert said in str(result.exception)


def test_without_pyspark_every_pipeline_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.spark.session.find_spec", lambda _name: None)
    for arguments in (
        ["archive", "t", "p"],
        ["scrub"],
        ["replay", "p", "t"],
        ["compact", "t", "--to", "u"],
        ["audit", "x"],
    ):
        result = CliRunner().invoke(app, arguments)
        assert "magnetar[spark]" in str(result.exception), arguments


def test_what_spark_said_is_kept_only_when_spark_failed() -> None:
    with pytest.raises(ConfigError), _log_file() as log:
        raise ConfigError("no topic")
    assert not log.exists()
    with _log_file() as log:
        pass
    assert not log.exists()
    with pytest.raises(SparkFailedError) as caught, _log_file() as log:
        raise SparkFailedError("it broke")
    assert str(caught.value) == f"it broke (what Spark said: {log})"
    log.unlink()
