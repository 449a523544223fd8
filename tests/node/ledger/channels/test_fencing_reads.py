"""Reads that fence, in v2: their answers are promises, so none is ever taken for another's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from magnetar.errors import LocalProtocolError, RequestTimeoutError
from magnetar.ledger.channels.channel import Channel
from magnetar.ledger.channels.connection import V2Connection
from magnetar.testing.cluster import BookieCluster
from magnetar.testing.waiting import until
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.digests import master_key
from magnetar.wire.bookkeeper.frames import LAST_ENTRY
from magnetar.wire.bookkeeper.hot_path import encode_fencing_reads, encode_reads, read_response_header
from magnetar.wire.bookkeeper.messages import V2, ReadEntry
from magnetar.wire.bookkeeper.v2 import encode_request
from tests.node.ledger.channels.channel_kit import (
    CONFIG,
    DIGEST,
    KEY,
    SECONDS,
    Reader,
    Writer,
    add_frames,
    bad_bookie,
    payload_of,
    read_for_ever,
    tcp_dial,
)

LEDGER = 7


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[BookieCluster]:
    async with BookieCluster(1, directory=tmp_path) as cluster:
        yield cluster


@pytest.fixture
async def channel(cluster: BookieCluster) -> AsyncIterator[Channel]:
    channel = await Channel.connect(cluster.bookie_ids[0], CONFIG, tcp_dial(cluster.nodes[0].port))
    yield channel
    await channel.aclose()


async def write(channel: Channel, entry_ids: range) -> dict[int, int]:
    writer = Writer()
    channel.attach(LEDGER, writer)
    channel.send_adds(add_frames(LEDGER, entry_ids))
    await until(lambda: len(writer.answers) == len(entry_ids), "the adds are answered")
    channel.detach(LEDGER, writer)
    return writer.answers


def fence(channel: Channel, *entry_ids: int, key: bytes = KEY) -> Reader:
    reader = Reader()
    channel.send_reads(LEDGER, entry_ids, reader, timeout_s=SECONDS, fence_with=key)
    return reader


def read(channel: Channel, *entry_ids: int) -> Reader:
    reader = Reader()
    channel.send_reads(LEDGER, entry_ids, reader, timeout_s=SECONDS)
    return reader


async def answered(reader: Reader, count: int = 1) -> None:
    await until(lambda: len(reader.answers) == count, "it is answered")


def test_frames_are_those_of_the_plain_encoder() -> None:
    asked = [
        ReadEntry(LEDGER, entry_id, fence=True, master_key=KEY, version=V2, high_priority=True)
        for entry_id in (LAST_ENTRY, 0, 2**40)
    ]
    assert encode_fencing_reads(LEDGER, (LAST_ENTRY, 0, 2**40), KEY) == b"".join(map(encode_request, asked))
    with pytest.raises(LocalProtocolError):
        encode_fencing_reads(LEDGER, (0,), b"short")


async def test_ledger_is_fenced_by_a_run_of_reads_on_the_one_connection(
    channel: Channel, cluster: BookieCluster
) -> None:
    await write(channel, range(3))
    reader = fence(channel, LAST_ENTRY, 0, 1, 2, 3)
    await answered(reader, 5)
    code, body = reader.answers.pop(LAST_ENTRY)
    assert code == Code.EOK
    assert DIGEST.open_last(LEDGER, body).entry_id == 2
    assert reader.answers.pop(3) == (Code.ENOENTRY, b"")
    assert all(payload_of(LEDGER, entry_id, body) == b"payload" for entry_id, (_, body) in reader.answers.items())
    assert cluster.nodes[0].running.counters.opened == 1
    assert (await write(channel, range(3, 4)))[3] == Code.EFENCED
    assert channel._v2.fencing == 0


async def test_wrong_key_is_an_answer(channel: Channel) -> None:
    await write(channel, range(1))
    reader = fence(channel, 0, key=master_key(b"wrong"))
    await answered(reader)
    assert reader.answers[0][0] == Code.EUA


@pytest.mark.parametrize("second", [fence, read])
async def test_whoever_reads_an_entry_while_it_is_read_with_a_fence_is_served_apart(
    channel: Channel, cluster: BookieCluster, second: Callable[..., Reader]
) -> None:
    await write(channel, range(2))
    cluster.hang(0)
    first = fence(channel, 0)
    others = second(channel, 0, 1)
    assert channel._requests._waiting or channel._requests._v3 is not None  # In v3.
    cluster.wake(0)
    await answered(first)
    await answered(others, 2)
    assert cluster.nodes[0].running.counters.opened == 2


async def test_request_for_an_entry_that_is_read_with_a_fence_is_served_apart(
    channel: Channel, cluster: BookieCluster
) -> None:
    await write(channel, range(1))
    cluster.hang(0)
    first = fence(channel, 0)
    asked = asyncio.ensure_future(channel.request(ReadEntry(LEDGER, 0, version=V2), timeout_s=SECONDS))
    cluster.wake(0)
    assert (await asked).code is Code.EOK
    await answered(first)
    assert cluster.nodes[0].running.counters.opened == 2


async def test_fence_does_not_join_reads_that_are_under_way(channel: Channel, cluster: BookieCluster) -> None:
    await write(channel, range(1))
    cluster.hang(0)
    first, second = read(channel, 0), read(channel, 0)
    fencing = fence(channel, 0)
    assert channel._v2.fencing == 0
    cluster.wake(0)
    for reader in (first, second, fencing):
        await answered(reader)
    assert cluster.nodes[0].running.counters.opened == 2
    assert (await write(channel, range(1, 2)))[1] == Code.EFENCED


async def test_answer_to_a_plain_read_is_no_promise_to_be_fenced() -> None:
    """The bookie answers the plain read alone; the request for the fence must stay unanswered."""

    async def answer_plain_reads(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        plain = encode_reads(LEDGER, [0])
        if await reader.readexactly(len(plain)) == plain:
            writer.write(read_response_header(LEDGER, 0, 0, Code.ENOENTRY))
        await read_for_ever(reader)

    async with bad_bookie(answer_plain_reads) as channel:
        plain, fencing = read(channel, 0), Reader()
        channel.send_reads(LEDGER, [0], fencing, timeout_s=0.1, fence_with=KEY)
        await answered(plain)
        await until(lambda: bool(fencing.failures), "nobody fenced the ledger")
        assert fencing.answers == {}
        assert isinstance(fencing.failures[0][1], RequestTimeoutError)


async def test_fence_that_was_given_up_keeps_its_place_and_the_next_goes_apart(
    channel: Channel, cluster: BookieCluster
) -> None:
    await write(channel, range(1))
    cluster.hang(0)
    given_up = Reader()
    ticket = channel.send_reads(LEDGER, [0], given_up, timeout_s=SECONDS, fence_with=KEY)
    assert not ticket.is_settled
    ticket.cancel()
    again, plain = fence(channel, 0), read(channel, 0)
    cluster.wake(0)
    await answered(again)
    await answered(plain)
    await until(lambda: channel._v2.fencing == 0, "the late answer has come")
    assert given_up.answers == {}
    assert given_up.failures == []
    assert ticket.is_settled
    assert channel.is_idle


async def test_fence_does_not_wait_for_writers_that_fill_the_connection(
    channel: Channel, cluster: BookieCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(channel, range(1))
    with monkeypatch.context() as patch:
        patch.setattr(V2Connection, "is_writable", False)
        reader = fence(channel, LAST_ENTRY)
        await answered(reader)
    assert cluster.nodes[0].running.counters.opened == 2
