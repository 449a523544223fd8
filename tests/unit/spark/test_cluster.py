"""A cluster as Spark's processes see it: where it is, and what its broker says."""

from __future__ import annotations

import asyncio
import pickle

import pytest

from magnetar.errors import BrokerUnavailableError, ConfigError
from magnetar.spark import cluster as cluster_module
from magnetar.spark.cluster import (
    Cluster,
    ClusterOptions,
    ClusterSettings,
    FoundPlace,
    SegmentLedger,
    Segments,
    cluster,
    open_cluster,
)
from magnetar.spark.loop_thread import run
from magnetar.staging.register import StagingSettings
from magnetar.topic.position import EARLIEST, Position
from magnetar.wire.bookkeeper.digests import DigestType
from tests.unit.client.http_server import HOST, Server, serving, unused_port

SEGMENTS = {
    "topic": "persistent://public/default/t",
    "lastConfirmed": {"ledgerId": 9, "entryId": 4},
    "nextIndex": 12,
    "earliest": {"ledgerId": 7, "entryId": 0},
    "terminated": False,
    "ledgers": [
        {
            "ledgerId": 7,
            "entries": 3,
            "sizeBytes": 300,
            "closed": True,
            "closedMs": 5,
            "firstIndex": 0,
            "firstPublishMs": None,
            "offloaded": False,
            "metadata": "AAE=",
            "digestType": "CRC32C",
            "password": "",
        }
    ],
}


@pytest.mark.parametrize(
    ("service_url", "admin_url", "expected"),
    [
        (None, None, ("pulsar://127.0.0.1:6650", "http://127.0.0.1:8080")),
        ("pulsar://broker:6650", None, ("pulsar://broker:6650", "http://broker:8080")),
        ("pulsar://a:6650,b:6651", None, ("pulsar://a:6650,b:6651", "http://a:8080,b:8080")),
        ("pulsar://[::1]:6650", None, ("pulsar://[::1]:6650", "http://[::1]:8080")),
        (None, "http://admin:80/", ("pulsar://127.0.0.1:6650", "http://admin:80")),
    ],
)
def test_the_admin_interface_is_looked_for_beside_the_broker(
    service_url: str | None, admin_url: str | None, expected: tuple[str, str]
) -> None:
    found = ClusterOptions.of(service_url, admin_url)
    assert (found.service_url, found.admin_url) == expected
    assert pickle.loads(pickle.dumps(found)) == found


@pytest.mark.parametrize("text", ["localhost:6650", "http://a:8080", "pulsar://", "pulsar://[::1"])
def test_an_address_that_is_none_says_what_one_looks_like(text: str) -> None:
    with pytest.raises(ConfigError, match="pulsar://HOST"):
        ClusterOptions.of(text)


def test_segments_come_from_json_and_can_be_pickled() -> None:
    found = Segments.of(SEGMENTS)
    assert (found.last_confirmed, found.earliest, found.next_index) == (Position(9, 4), Position(7, 0), 12)
    assert found.ledgers == (SegmentLedger(7, 3, 300, 0, b"\x00\x01", DigestType.CRC32C, b""),)
    assert pickle.loads(pickle.dumps(found)) == found


def test_places_and_settings_come_from_json() -> None:
    assert FoundPlace.of({"ledgerId": -1, "entryId": -1, "batchIndex": -1}) == FoundPlace(EARLIEST, -1)
    assert FoundPlace.of({"ledgerId": 1, "entryId": 2, "batchIndex": 3, "index": 9}) == FoundPlace(Position(1, 2), 3, 9)
    json = {
        "ledgersRoot": "/ledgers", "ensembleSize": 3, "writeQuorum": 2, "ackQuorum": 1, "digestType": "CRC32",
        "maxMessageBytes": 5,
    }  # fmt: skip
    staging = StagingSettings(ensemble_size=3, write_quorum=2, ack_quorum=1, digest_type=DigestType.CRC32)
    assert ClusterSettings.of(json) == ClusterSettings("/ledgers", staging, 5)


# --- opening one ------------------------------------------------------------------------------------------------------


def _answer(status: str, body: bytes) -> bytes:
    return b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n%s" % (status.encode(), len(body), body)


@pytest.mark.parametrize(
    "answer",
    [
        _answer("404 Not Found", b'{"reason": "nothing here"}'),
        _answer("200 OK", b'{"some": "thing"}'),
        _answer("200 OK", b"[]"),
    ],
    ids=["a broker of another kind", "another server", "a list"],
)
async def test_an_address_where_something_else_answers_is_told_apart(answer: bytes) -> None:
    async with serving(Server(lambda _: answer)) as server:
        with pytest.raises(ConfigError, match="adminUrl"):
            await Cluster.open(ClusterOptions.of(admin_url=f"http://{HOST}:{server.port}"))


async def test_a_broker_that_is_not_there_is_waited_for_and_then_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "PATIENCE_S", 0.05)
    port = await unused_port()
    with pytest.raises(BrokerUnavailableError, match=f"{HOST}:{port}"):
        await Cluster.open(ClusterOptions.of(admin_url=f"http://{HOST}:{port}"))


def test_a_process_has_one_cluster_for_equal_options_and_a_failure_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[ClusterOptions] = []

    async def open_(options: ClusterOptions) -> object:
        opened.append(options)
        await asyncio.sleep(0)
        if len(opened) == 1:
            raise BrokerUnavailableError("not yet")
        return object()

    monkeypatch.setattr(Cluster, "open", open_)
    monkeypatch.setattr(cluster_module, "_opened", {})
    options = ClusterOptions.of("pulsar://one:6650")
    with pytest.raises(BrokerUnavailableError, match="not yet"):
        cluster(options)
    found = cluster(options)
    assert cluster(ClusterOptions.of("pulsar://one:6650")) is found
    assert cluster(ClusterOptions.of("pulsar://two:6650")) is not found
    assert len(opened) == 3

    async def on_the_loop() -> bool:
        assert await open_cluster(options) is found
        both = await asyncio.gather(*(open_cluster(ClusterOptions.of("pulsar://three:6650")) for _ in range(2)))
        return both[0] is both[1]

    assert run(on_the_loop(), 5)
    assert len(opened) == 4
