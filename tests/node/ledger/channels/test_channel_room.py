"""Room on the two connections of a channel: each request needs it on the one that it travels on."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from magnetar.errors import BookieUnavailableError
from magnetar.ids import BookieId
from magnetar.ledger.channels.channel import Channel
from magnetar.ledger.channels.connection import V2Connection, V3Connection
from magnetar.testing.cluster import BookieCluster
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.messages import V2, V3, AddEntry, AnyRequest, BatchRead, ReadEntry, ReadLac
from tests.node.ledger.channels.channel_kit import CONFIG, DIGEST, KEY, SECONDS, Reader, Writer, tcp_dial

COMPACT: list[AnyRequest] = [ReadEntry(7, 0, version=V2), BatchRead(7, 0, 0, 2, 1000, version=V2)]
FULL: list[AnyRequest] = [
    ReadEntry(7, 0, version=V3),
    ReadEntry(7, 0, fence=True, master_key=KEY, version=V2),
    ReadLac(7, version=V3),
]


def named(request: AnyRequest) -> str:
    return type(request).__name__


@pytest.fixture
async def channel() -> AsyncIterator[Channel]:
    async with BookieCluster(1) as cluster:
        channel = await Channel.connect(BookieId("b"), CONFIG, tcp_dial(cluster.nodes[0].port))
        await channel.request(ReadLac(7, version=V3), timeout_s=SECONDS)  # So that there are both connections.
        yield channel
        await channel.aclose()


@pytest.mark.parametrize("request_", FULL, ids=named)
async def test_full_v2_connection_does_not_refuse_what_travels_in_v3(
    channel: Channel, request_: AnyRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(V2Connection, "is_writable", False)
    await channel.request(request_, timeout_s=SECONDS)


@pytest.mark.parametrize("request_", COMPACT, ids=named)
async def test_full_v3_connection_does_not_refuse_what_travels_in_v2(
    channel: Channel, request_: AnyRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(V3Connection, "is_writable", False)
    await channel.request(request_, timeout_s=SECONDS)
    channel.send_reads(7, [1, 2], Reader(), timeout_s=SECONDS).cancel()


@pytest.mark.parametrize(
    ("connection", "request_"), [*[(V2Connection, r) for r in COMPACT], *[(V3Connection, r) for r in FULL]]
)
async def test_full_connection_refuses_what_travels_on_it(
    channel: Channel,
    connection: type[V2Connection | V3Connection],
    request_: AnyRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "is_writable", False)
    with pytest.raises(BookieUnavailableError, match="does not read"):
        await channel.request(request_, timeout_s=SECONDS)


async def test_reads_of_which_one_must_travel_in_v3_are_refused_before_anything_is_sent(
    channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel.send_reads(7, [1], Reader(), timeout_s=SECONDS).cancel()  # Its answer may yet come, so 1 is ambiguous.
    monkeypatch.setattr(V3Connection, "is_writable", False)
    with pytest.raises(BookieUnavailableError, match="does not read"):
        channel.send_reads(7, [1, 2], Reader(), timeout_s=SECONDS)
    assert channel.is_idle


async def test_add_in_v3_is_not_refused_as_its_writer_looks_for_room_itself(
    channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(V3Connection, "is_writable", False)
    assert not channel.is_v3_writable
    body = DIGEST.seal(8, 0, -1, 1, b"x") + b"x"
    response = await channel.request(AddEntry(8, 0, KEY, body), timeout_s=SECONDS)
    assert response.code is Code.EOK


async def test_writers_are_told_of_room_on_the_v3_connection(channel: Channel) -> None:
    writer = Writer()
    channel.attach(8, writer)
    full = channel._requests._v3
    assert full is not None
    full._owner.on_room()
    assert writer.rooms == 1
