"""What the broker needs fails: the disk fills, the metadata store stalls. Clients wait or get an error; what was
acknowledged is kept; and when the outage is over, everything continues by itself."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from magnetar.testing.processes.child import wait_for
from magnetar.testing.processes.servers import StandaloneProcess
from magnetar.testing.processes.zookeeper import ZooKeeperServer
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand, ServerError
from tests.integration.pulsar.conftest import connect
from tests.integration.pulsar.neighbour import WAIT_MS, Neighbour, new_topic
from tests.integration.pulsar.raw_client import RawClient

MEGABYTE = 2**20
DISK_MB, BALLAST_MB = 96, 40
SMALL_DISK = (
    "bookie.disk_check_interval_ms=100",
    "bookie.disk_usage_threshold_percent=80",
    "bookie.disk_usage_low_water_mark_percent=70",
    "bookie.disk_usage_warn_percent=70",
    "bookie.disk_reserve_compaction_bytes=0",
    "bookie.disk_reserve_high_priority_bytes=0",
    "storage.index_reserve_bytes=1048576",
    "storage.write_cache_bytes_max=4194304",
    "journal.file_bytes_max=4194304",
    "topic.ledger_retry_ms=200",
)


@pytest.fixture
def on_a_small_disk(tmp_path: Path) -> Iterator[StandaloneProcess]:
    """On a file system of its own, which ends with the process, and with some room that can be given back."""
    (tmp_path / "disk").mkdir()
    mounted = f"mount -t tmpfs -o size={DISK_MB}m tmpfs {tmp_path / 'disk'} && "
    mounted += f"head -c {BALLAST_MB}M /dev/zero > {tmp_path / 'disk' / 'ballast'} && "
    shell = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*shell, mounted + "true"], capture_output=True, timeout=30, check=False).returncode:
        pytest.skip("this system lets nobody mount a file system of his own")
    process = StandaloneProcess(tmp_path / "disk" / "data", *SMALL_DISK, under=[*shell, mounted + 'exec "$@"', "sh"])
    process.start()
    yield process
    process.kill()


def test_a_full_disk_stops_publishing_and_nothing_else_until_there_is_room(
    on_a_small_disk: StandaloneProcess, tmp_path: Path
) -> None:
    process = on_a_small_disk
    client = connect(process)
    consumer = client.subscribe("t", "s")
    producer = client.create_producer("t", send_timeout_millis=2_000, block_if_queue_full=True, batching_enabled=False)
    stored = _send_until_refused(producer)
    assert stored > 10
    for number in range(stored):  # Reading and acknowledging continue.
        message = consumer.receive(WAIT_MS)
        assert int(message.data()[:6]) == number
        consumer.acknowledge(message)
    Path(f"/proc/{process.pid}/root{tmp_path / 'disk' / 'ballast'}").unlink()
    again = client.create_producer("t", send_timeout_millis=WAIT_MS)
    again.send(b"there is room")
    while consumer.receive(WAIT_MS).data() != b"there is room":
        pass  # What the client had given up on may have been stored after all.
    client.close()


def _send_until_refused(producer: pulsar.Producer) -> int:
    """Returns how many messages were acknowledged before."""
    for number in range(4 * DISK_MB):
        try:
            producer.send(b"%06d" % number + bytes(MEGABYTE // 4))
        except pulsar.Timeout:
            return number
    raise AssertionError("the disk is never full")


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tmp_path / "zk") as server:
        yield server


def test_topics_that_are_loaded_go_on_while_the_metadata_store_stalls_and_others_are_told_to_wait(
    tmp_path: Path, zookeeper: ZooKeeperServer
) -> None:
    flags = ["--metadata", zookeeper.url]
    process = StandaloneProcess(tmp_path / "data", "metadata.operation_timeout_ms=1000", flags=flags)
    with process:
        neighbour = Neighbour(process)
        assert neighbour.is_served()
        zookeeper.pause()
        sent = [neighbour.publish() for _ in range(20)]
        assert neighbour.receive(20) == sent
        with RawClient(process.port) as raw:
            began = time.monotonic()
            refused = raw.producer(new_topic())
            assert refused.type == BaseCommand.ERROR
            assert refused.error.error in (ServerError.ServiceNotReady, ServerError.MetadataError)
            assert refused.error.message
            assert time.monotonic() - began < 10
        zookeeper.resume()
        wait_for(neighbour.is_served, what="service after the stall", timeout=20)
        assert neighbour.lost_nothing()
        neighbour.close()
