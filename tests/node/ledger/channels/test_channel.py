"""The channel against a real bookie: over loopback and inside the process, on both loops, with the same suite."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from magnetar.errors import BookieUnavailableError, LocalProtocolError, RequestTimeoutError
from magnetar.ledger.channels.channel import Channel, Dial
from magnetar.ledger.channels.connection import RECEIVE_BYTES, Connection
from magnetar.ledger.channels.local_transport import connect_local
from magnetar.testing.cluster import BookieCluster
from magnetar.testing.waiting import until
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.frames import LAST_ENTRY
from magnetar.wire.bookkeeper.messages import (
    V2,
    V3,
    AddEntry,
    AddResponse,
    BatchRead,
    BatchReadResponse,
    ForceLedger,
    ForceLedgerResponse,
    GetBookieInfo,
    GetBookieInfoResponse,
    ReadEntry,
    ReadLac,
    ReadLacResponse,
    ReadResponse,
)
from tests.node.ledger.channels.channel_kit import (
    CONFIG,
    KEY,
    SECONDS,
    Reader,
    Writer,
    add_frames,
    payload_of,
    tcp_dial,
)

LEDGER = 7


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[BookieCluster]:
    async with BookieCluster(1, directory=tmp_path) as cluster:
        yield cluster


def local_dial(cluster: BookieCluster) -> Dial:
    async def dial(make: Callable[[], Connection]) -> None:
        connect_local(cluster.nodes[0].running.accept, make)

    return dial


@pytest.fixture(params=["tcp", "local"])
async def channel(request: pytest.FixtureRequest, cluster: BookieCluster) -> AsyncIterator[Channel]:
    dial = tcp_dial(cluster.nodes[0].port) if request.param == "tcp" else local_dial(cluster)
    channel = await Channel.connect(cluster.bookie_ids[0], CONFIG, dial)
    yield channel
    await channel.aclose()


async def write(channel: Channel, entry_ids: range, payload: bytes = b"payload", ledger_id: int = LEDGER) -> None:
    writer = Writer()
    channel.attach(ledger_id, writer)
    channel.send_adds(add_frames(ledger_id, entry_ids, payload))
    await until(lambda: len(writer.answers) == len(entry_ids), "the adds are answered")
    channel.detach(ledger_id, writer)
    assert set(writer.answers.values()) == {Code.EOK}


class TestAdds:
    async def test_every_add_is_answered_to_the_writer_of_its_ledger(self, channel: Channel) -> None:
        first, second = Writer(), Writer()
        channel.attach(1, first)
        channel.attach(2, second)
        channel.send_adds(add_frames(1, range(100)) + add_frames(2, range(50)))
        await until(lambda: len(first.answers) == 100 and len(second.answers) == 50, "all adds are answered")
        assert set(first.answers.values()) | set(second.answers.values()) == {Code.EOK}

    async def test_answers_that_come_together_are_told_in_one_call(self, channel: Channel) -> None:
        writer = Writer()
        channel.attach(LEDGER, writer)
        channel.send_adds(add_frames(LEDGER, range(1_000)))
        await until(lambda: len(writer.answers) == 1_000, "all adds are answered")
        assert len(writer.runs) < 50

    async def test_a_refused_add_is_told_with_its_code(self, channel: Channel) -> None:
        await write(channel, range(1))
        await channel.request(ReadEntry(LEDGER, LAST_ENTRY, fence=True, master_key=KEY), timeout_s=SECONDS)
        writer = Writer()
        channel.attach(LEDGER, writer)
        channel.send_adds(add_frames(LEDGER, [1]))
        await until(lambda: writer.answers, "the add is answered")
        assert writer.answers == {1: Code.EFENCED}

    async def test_a_ledger_has_one_writer_per_channel(self, channel: Channel) -> None:
        writer = Writer()
        channel.attach(LEDGER, writer)
        with pytest.raises(LookupError):
            channel.attach(LEDGER, Writer())
        channel.detach(LEDGER, Writer())  # Not attached, so nothing happens.
        assert not channel.can_attach(LEDGER)
        channel.detach(LEDGER, writer)
        channel.attach(LEDGER, Writer())

    async def test_late_answers_of_a_writer_that_left_are_told_to_nobody(
        self, channel: Channel, cluster: BookieCluster
    ) -> None:
        writer = Writer()
        channel.attach(LEDGER, writer)
        cluster.hang(0)
        channel.send_adds(add_frames(LEDGER, range(3)))
        channel.detach(LEDGER, writer, unanswered=3)
        assert not channel.can_attach(LEDGER)
        cluster.wake(0)
        await until(lambda: channel.can_attach(LEDGER), "the late answers have come")
        assert writer.runs == []

    async def test_a_bookie_that_does_not_read_makes_the_channel_unwritable_until_it_does(
        self, channel: Channel, cluster: BookieCluster
    ) -> None:
        writer = Writer()
        channel.attach(LEDGER, writer)
        cluster.hang(0)
        payload = bytes(2**20)
        sent = 0
        while channel.is_writable:
            channel.send_adds(add_frames(LEDGER, [sent], payload))
            sent += 1
            await asyncio.sleep(0)
        assert sent < 60, "the channel took more than it should"
        with pytest.raises(BookieUnavailableError, match="does not read"):
            await channel.request(ReadEntry(LEDGER, 0, version=V2), timeout_s=SECONDS)
        cluster.wake(0)
        await until(lambda: writer.rooms, "there is room again")
        await until(lambda: len(writer.answers) == sent, "every add is answered")
        assert writer.rooms == 1


class TestReads:
    @pytest.mark.parametrize("version", [V2, V3])
    async def test_an_entry_is_read_back(self, channel: Channel, version: int) -> None:
        await write(channel, range(3))
        answer = await channel.request(ReadEntry(LEDGER, 1, version=version), timeout_s=SECONDS)
        assert isinstance(answer, ReadResponse)
        assert answer.code is Code.EOK
        assert answer.version == version
        assert payload_of(LEDGER, 1, answer.body) == b"payload"

    @pytest.mark.parametrize("version", [V2, V3])
    async def test_an_entry_that_is_not_there_is_an_answer(self, channel: Channel, version: int) -> None:
        await write(channel, range(1))
        absent = await channel.request(ReadEntry(LEDGER, 9, version=version), timeout_s=SECONDS)
        unknown = await channel.request(ReadEntry(LEDGER + 1, 0, version=version), timeout_s=SECONDS)
        assert (absent.code, unknown.code) == (Code.ENOENTRY, Code.ENOLEDGER)

    @pytest.mark.parametrize("size", [RECEIVE_BYTES // 2, RECEIVE_BYTES, 5 * 2**20 - 1000])
    async def test_large_entries_come_whole(self, channel: Channel, size: int) -> None:
        payload = bytes(range(256)) * (size // 256)
        await write(channel, range(3), payload)
        reader = Reader()
        channel.send_reads(LEDGER, range(3), reader, timeout_s=SECONDS)
        await until(lambda: len(reader.answers) == 3, "the entries are read")
        for entry_id, (code, body) in reader.answers.items():
            assert code == Code.EOK
            assert payload_of(LEDGER, entry_id, body) == payload

    async def test_many_reads_are_told_in_few_calls(self, channel: Channel) -> None:
        await write(channel, range(1_000))
        reader = Reader()
        channel.send_reads(LEDGER, range(1_001), reader, timeout_s=SECONDS)
        await until(lambda: len(reader.answers) == 1_001, "all reads are answered")
        assert len(reader.runs) < 500
        assert reader.answers.pop(1_000) == (Code.ENOENTRY, b"")
        assert all(payload_of(LEDGER, entry_id, body) == b"payload" for entry_id, (_, body) in reader.answers.items())
        assert reader.failures == []

    async def test_the_same_entry_may_be_read_by_many_at_once(self, channel: Channel) -> None:
        await write(channel, range(1))
        readers = [Reader() for _ in range(5)]
        for reader in readers:
            channel.send_reads(LEDGER, [0], reader, timeout_s=SECONDS)
        awaited = [channel.request(ReadEntry(LEDGER, 0, version=V2), timeout_s=SECONDS) for _ in range(5)]
        answers = await asyncio.gather(*awaited)
        await until(lambda: all(reader.answers for reader in readers), "all readers have it")
        assert all(isinstance(answer, ReadResponse) and answer.body for answer in answers)

    async def test_a_cancelled_read_is_told_to_nobody_and_the_entry_can_be_read_again(
        self, channel: Channel, cluster: BookieCluster
    ) -> None:
        await write(channel, range(2))
        cluster.hang(0)
        cancelled, again = Reader(), Reader()
        channel.send_reads(LEDGER, [0, 1], cancelled, timeout_s=SECONDS).cancel()
        channel.send_reads(LEDGER, [0, 1], again, timeout_s=SECONDS)
        cluster.wake(0)
        await until(lambda: len(again.answers) == 2, "the second reader has both")
        assert cancelled.answers == {}
        assert cancelled.failures == []
        await until(lambda: channel.is_idle, "nothing is owed")

    async def test_a_cancelled_request_leaves_nothing_behind(self, channel: Channel, cluster: BookieCluster) -> None:
        cluster.hang(0)
        for request in (ReadEntry(LEDGER, 0, version=V2), ReadLac(LEDGER), BatchRead(LEDGER, 0, 0, 1, 100, version=V2)):
            asked = asyncio.ensure_future(channel.request(request, timeout_s=SECONDS))
            await asyncio.sleep(0)
            asked.cancel()
            await asyncio.wait([asked])
        assert channel.is_idle
        cluster.wake(0)
        answer = await channel.request(ReadEntry(LEDGER, 0, version=V2), timeout_s=SECONDS)
        assert answer.code is Code.ENOLEDGER

    async def test_a_batch_is_read(self, channel: Channel) -> None:
        await write(channel, range(10))
        requests = [BatchRead(LEDGER, first, 0, 4, 2**20, version=V2) for first in (0, 4)]
        answers = await asyncio.gather(*[channel.request(request, timeout_s=SECONDS) for request in requests])
        for first, answer in zip((0, 4), answers, strict=True):
            assert isinstance(answer, BatchReadResponse)
            assert [payload_of(LEDGER, first + at, body) for at, body in enumerate(answer.bodies)] == [b"payload"] * 4


class TestOtherRequests:
    async def test_what_only_v3_has_is_asked_there(self, channel: Channel) -> None:
        await write(channel, range(2))
        info = await channel.request(GetBookieInfo(), timeout_s=SECONDS)
        lac = await channel.request(ReadLac(LEDGER), timeout_s=SECONDS)
        forced = await channel.request(ForceLedger(LEDGER), timeout_s=SECONDS)
        assert isinstance(info, GetBookieInfoResponse)
        assert info.free_disk_bytes
        assert isinstance(lac, ReadLacResponse)
        assert lac.last_entry_body
        assert isinstance(forced, ForceLedgerResponse)
        assert forced.code is Code.EOK

    async def test_v3_requests_made_at_once_share_one_connection(
        self, channel: Channel, cluster: BookieCluster
    ) -> None:
        await asyncio.gather(*[channel.request(GetBookieInfo(), timeout_s=SECONDS) for _ in range(20)])
        assert cluster.nodes[0].running.counters.opened == 2

    async def test_an_add_can_be_awaited_in_v3(self, channel: Channel) -> None:
        frames = add_frames(LEDGER, [0])
        body = b"".join(frames)[28:]  # After length, word and master key.
        answer = await channel.request(AddEntry(LEDGER, 0, KEY, body), timeout_s=SECONDS)
        assert isinstance(answer, AddResponse)
        assert answer.code is Code.EOK

    async def test_a_fencing_read_travels_in_v3_whatever_it_says(self, channel: Channel) -> None:
        await write(channel, range(1))
        fence = ReadEntry(LEDGER, LAST_ENTRY, fence=True, master_key=KEY, version=V2)
        answer = await channel.request(fence, timeout_s=SECONDS)
        assert answer.code is Code.EOK
        assert answer.version == V3

    async def test_what_the_protocol_cannot_say_is_refused_and_not_awaited(self, channel: Channel) -> None:
        with pytest.raises(LocalProtocolError):
            await channel.request(AddEntry(LEDGER, 0, KEY, b"", version=V2), timeout_s=SECONDS)
        assert channel.is_idle


class TestTrouble:
    async def test_a_hung_bookie_is_a_timeout(self, channel: Channel, cluster: BookieCluster) -> None:
        writer = Writer()
        channel.attach(LEDGER, writer)  # While it has a writer, silence alone does not end the channel.
        cluster.hang(0)
        reader = Reader()
        channel.send_reads(LEDGER, [1, 2], reader, timeout_s=0.05)
        for request in (ReadEntry(LEDGER, 0, version=V2), ReadLac(LEDGER), BatchRead(LEDGER, 0, 0, 1, 100, version=V2)):
            with pytest.raises(RequestTimeoutError, match="50 ms"):
                await channel.request(request, timeout_s=0.05)
        assert [ids for ids, _ in reader.failures] == [[1, 2]]
        assert isinstance(reader.failures[0][1], RequestTimeoutError)
        assert not channel.is_lost

        cluster.wake(0)  # What is asked for now is answered, whatever comes late.
        answer = await channel.request(ReadEntry(LEDGER, 0, version=V2), timeout_s=SECONDS)
        assert answer.code is Code.ENOLEDGER

    async def test_silence_ends_a_channel_that_nobody_writes_through(
        self, channel: Channel, cluster: BookieCluster
    ) -> None:
        cluster.hang(0)
        with pytest.raises(RequestTimeoutError):
            await channel.request(ReadEntry(LEDGER, 0, version=V2), timeout_s=0.05)
        assert channel.is_lost
        with pytest.raises(BookieUnavailableError, match="nothing was heard"):
            await channel.request(ReadEntry(LEDGER, 0, version=V2), timeout_s=SECONDS)

    async def test_a_loss_is_told_once_to_everybody(self, channel: Channel, cluster: BookieCluster) -> None:
        await channel.request(GetBookieInfo(), timeout_s=SECONDS)  # Both connections are open.
        told: list[str] = []
        channel.on_lost = lambda _, error: told.append(str(error))
        writers = [Writer(), Writer()]
        for ledger_id, writer in enumerate(writers):
            channel.attach(ledger_id, writer)
        cluster.hang(0)
        reader = Reader()
        channel.send_reads(LEDGER, range(5), reader, timeout_s=SECONDS)
        requests = (ReadEntry(LEDGER, 0, version=V2), ReadLac(LEDGER), GetBookieInfo())
        asked = [asyncio.ensure_future(channel.request(request, timeout_s=SECONDS)) for request in requests]
        await asyncio.sleep(0)
        await cluster.kill(0)
        errors = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(error) for error in errors] == [BookieUnavailableError] * 3
        assert [ids for ids, _ in reader.failures] == [[0, 1, 2, 3, 4]]
        assert [len(writer.losses) for writer in writers] == [1, 1]
        assert channel.is_lost
        assert channel.is_idle
        await channel.aclose()
        assert [len(writer.losses) for writer in writers] == [1, 1]
        assert told == [str(writers[0].losses[0])]

    async def test_a_lost_channel_takes_nothing(self, channel: Channel) -> None:
        channel.lose(BookieUnavailableError("enough"))
        assert channel.is_lost
        channel.send_adds(add_frames(LEDGER, [0]))
        with pytest.raises(BookieUnavailableError, match="enough"):
            channel.attach(LEDGER, Writer())
        with pytest.raises(BookieUnavailableError, match="enough"):
            channel.send_reads(LEDGER, [0], Reader(), timeout_s=SECONDS)
        with pytest.raises(BookieUnavailableError, match="enough"):
            await channel.request(GetBookieInfo(), timeout_s=SECONDS)

    async def test_closing_tells_whoever_uses_it(self, channel: Channel) -> None:
        writer = Writer()
        channel.attach(LEDGER, writer)
        await channel.aclose()
        assert [str(error) for error in writer.losses] == [f"the channel to bookie {channel.bookie_id} was closed"]
