"""Clients that ask and never read the answers, or ask for more than fits anywhere and read it: a real process, real
sockets, its memory measured."""

from __future__ import annotations

import asyncio
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from magnetar.testing.processes.servers import BookieProcess, init_cluster
from magnetar.testing.waiting import until
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.digests import DigestType, entry_digest, master_key
from magnetar.wire.bookkeeper.ends import encode_request
from magnetar.wire.bookkeeper.hot_path import AddEncoder
from magnetar.wire.bookkeeper.messages import V2, V3, ReadEntry
from workloads.bookie_load import BookieLoad, payload_of

HOST = "127.0.0.1"
LEDGER = 1
ENTRIES, ENTRY_BYTES = 256, 128 * 1024
CLIENTS = 16
READS = 2_000  # By each: 4 GB of answers in all.
ADDS = 100_000
BURSTS, READS_PER_BURST = 10, 300  # A client reads 400 MB of answers, and requests them in large bursts.
REFUSALS = 100  # At one look every few milliseconds.
ANNOUNCERS, ANNOUNCED_BYTES, SENT_BYTES = 100, 5_253_000, 270_000
CACHES_BYTES = 3 * 16 * 2**20
ALLOWED_BYTES = CACHES_BYTES + 150 * 2**20


@pytest.fixture
def bookie(tmp_path: Path) -> Iterator[BookieProcess]:
    metadata = f"sqlite:{tmp_path}/metadata.db"
    init_cluster(metadata)
    process = BookieProcess(
        tmp_path / "bookie",
        metadata,
        "bookie.unwritable_wait_ms=200",
        f"storage.write_cache_bytes_max={CACHES_BYTES // 3}",
        f"storage.read_cache_bytes_max={CACHES_BYTES // 3}",
    )
    process.start()
    yield process
    process.stop()


def peak_bytes(bookie: BookieProcess) -> int:
    status = Path(f"/proc/{bookie.child.popen.pid}/status").read_text()
    (peak,) = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(peak) * 1024


async def metric(bookie: BookieProcess, name: str) -> float:
    def scrape() -> float:
        with urllib.request.urlopen(f"http://{HOST}:{bookie.http_port}/metrics", timeout=30) as page:
            lines = page.read().decode().splitlines()
        return float(next(line for line in lines if line.startswith(f"magnetar_bookie_{name} ")).split()[1])

    return await asyncio.to_thread(scrape)


class NeverReads:
    """Sends as much as the bookie lets it, and leaves the answers where they are."""

    def __init__(self, port: int) -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        self.socket.connect((HOST, port))
        self.socket.setblocking(False)

    def send(self, frames: bytes) -> int:
        """How much of it was taken."""
        view, sent = memoryview(frames), 0
        try:
            while sent < len(frames):
                sent += self.socket.send(view[sent : sent + 65_536])
        except BlockingIOError:
            pass
        return sent


async def fill(bookie: BookieProcess) -> BookieLoad:
    load = await BookieLoad.connect(HOST, bookie.port, LEDGER, entry_bytes=ENTRY_BYTES)
    load.begin(8)
    await load.wait_for(lambda load: len(load.acknowledged) >= ENTRIES)
    load.finish()
    await load.wait_for(lambda load: not load.in_flight)
    return load


async def test_readers_that_never_read_do_not_grow_the_bookie_and_others_are_served(bookie: BookieProcess) -> None:
    polite = await fill(bookie)
    with ExitStack() as stack:
        for number in range(CLIENTS):
            client = NeverReads(bookie.port)
            stack.callback(client.socket.close)
            wanted = [(37 * entry + 13 * number) % ENTRIES for entry in range(READS)]
            client.send(b"".join(encode_request(ReadEntry(LEDGER, entry, version=V2)) for entry in wanted))

        async def has_dropped() -> bool:
            return await metric(bookie, "dropped_answers_total") > CLIENTS * 100

        await until(has_dropped, "answers are dropped", seconds=60)
        code, payload = await polite.read(7)
        assert code is Code.EOK
        assert payload == payload_of(LEDGER, 7, ENTRY_BYTES)

        async def is_idle() -> bool:
            return await metric(bookie, "reads_in_progress") == 0

        await until(is_idle, "what they asked for is done with", seconds=60)
        assert peak_bytes(bookie) < ALLOWED_BYTES
    await polite.aclose()


@pytest.mark.parametrize("version", [V2, V3])
async def test_a_reader_that_asks_for_much_at_once_and_reads_it_gets_every_answer(
    bookie: BookieProcess, version: int
) -> None:
    polite = await fill(bookie)
    reader, writer = await asyncio.open_connection(HOST, bookie.port)

    try:
        for answered in range(BURSTS * READS_PER_BURST):
            if answered < BURSTS:  # One burst more with each of the first answers: far more is asked for than is read.
                first = answered * READS_PER_BURST
                numbers = range(first, first + READS_PER_BURST)
                writer.write(b"".join(encode_request(read_of(number, version)) for number in numbers))
            size = int.from_bytes(await asyncio.wait_for(reader.readexactly(4), 30), "big")
            assert size > ENTRY_BYTES
            await asyncio.wait_for(reader.readexactly(size), 30)
    finally:
        writer.close()
    assert await metric(bookie, "dropped_answers_total") == 0
    assert peak_bytes(bookie) < ALLOWED_BYTES
    await polite.aclose()


def read_of(number: int, version: int) -> ReadEntry:
    return ReadEntry(LEDGER, number % ENTRIES, version=version, txn_id=number if version == V3 else 0)


async def test_a_writer_that_never_reads_is_slowed_down_and_does_not_grow_the_bookie(bookie: BookieProcess) -> None:
    """Its adds are taken as long as their answers find room in the sockets; then its socket is not read any more."""
    encoder = AddEncoder(LEDGER, master_key(b""), entry_digest(DigestType.CRC32C))
    payload = b"p" * 100
    frames = b"".join(encoder.header(entry, -1, 1, payload) + payload for entry in range(ADDS))
    client = NeverReads(bookie.port)
    sent = refusals = 0
    try:

        async def is_held() -> bool:
            """The socket takes nothing, time and again: a full one that the bookie still reads takes some soon."""
            nonlocal sent, refusals
            more = client.send(frames[sent:])
            sent += more
            refusals = 0 if more else refusals + 1
            return refusals >= REFUSALS or sent == len(frames)

        await until(is_held, "the writer is held", seconds=60)
        assert peak_bytes(bookie) < ALLOWED_BYTES
        other = await BookieLoad.connect(HOST, bookie.port, 2)
        other.begin(10)
        await other.wait_for(lambda load: len(load.acknowledged) > 100)
        await other.aclose()
    finally:
        client.socket.close()


async def test_clients_that_announce_large_frames_cost_what_they_send_and_not_what_they_announce(
    bookie: BookieProcess,
) -> None:
    before = peak_bytes(bookie)
    head = ANNOUNCED_BYTES.to_bytes(4, "big") + bytes([2, 1, 0, 0])  # The begin of a compact add.
    with ExitStack() as stack:
        for _ in range(ANNOUNCERS):
            client = stack.enter_context(socket.create_connection((HOST, bookie.port)))
            await asyncio.to_thread(client.sendall, head + bytes(SENT_BYTES))

        async def has_received() -> bool:
            return await metric(bookie, "received_bytes_total") >= ANNOUNCERS * SENT_BYTES

        await until(has_received, "all they sent has arrived", seconds=60)
        assert peak_bytes(bookie) - before < 4 * ANNOUNCERS * SENT_BYTES
