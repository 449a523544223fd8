"""A held link drops nothing and passes nothing on."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from magnetar.ledger.channels.local_transport import connect_local
from magnetar.testing.links import LocalLink

pytestmark = pytest.mark.virtual_time

AFTER_S = 1_000.0  # Of virtual time: what could arrive has arrived.


class Peer(asyncio.BufferedProtocol):
    def __init__(self) -> None:
        self.received = b""
        self.lost: list[Exception | None] = []
        self.is_full = False
        self._buffer = bytearray(2**16)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self._buffer[:nbytes]

    def pause_writing(self) -> None:
        self.is_full = True

    def resume_writing(self) -> None:
        self.is_full = False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


def connect(link: LocalLink) -> Peer:
    near = Peer()
    connect_local(link.accept, lambda: near)
    return near


@pytest.fixture
def far() -> Peer:
    return Peer()


def link_to(far: Peer) -> tuple[LocalLink, Peer]:
    link = LocalLink(lambda: far)
    return link, connect(link)


async def test_bytes_pass_in_both_directions(far: Peer) -> None:
    _, near = link_to(far)
    near.transport.write(b"question")
    far.transport.write(b"answer")
    await asyncio.sleep(AFTER_S)
    assert (far.received, near.received) == (b"question", b"answer")


async def test_what_is_sent_through_a_held_link_arrives_after_the_last_release(far: Peer) -> None:
    link, near = link_to(far)
    link.hold("pause")
    link.hold("partition")
    near.transport.write(b"late")
    link.release("pause")
    await asyncio.sleep(AFTER_S)
    assert far.received == b""
    link.release("partition")
    await asyncio.sleep(AFTER_S)
    assert far.received == b"late"


async def test_a_connection_that_is_made_through_a_held_link_waits(far: Peer) -> None:
    link = LocalLink(lambda: far)
    link.hold("pause")
    near = connect(link)
    near.transport.write(b"late")
    await asyncio.sleep(AFTER_S)
    assert (far.received, near.lost) == (b"", [])
    link.release("pause")
    await asyncio.sleep(AFTER_S)
    assert far.received == b"late"


async def test_a_writer_to_a_held_link_is_asked_to_wait(far: Peer) -> None:
    link, near = link_to(far)
    link.hold("pause")
    near.transport.write(bytes(2**20))
    await asyncio.sleep(AFTER_S)
    assert near.is_full
    link.release("pause")
    await asyncio.sleep(AFTER_S)
    assert (len(far.received), near.is_full) == (2**20, False)


async def test_the_end_of_a_connection_is_learned_after_what_was_sent(far: Peer) -> None:
    link, near = link_to(far)
    link.hold("pause")
    near.transport.write(b"last words")
    near.transport.close()
    await asyncio.sleep(AFTER_S)
    assert far.lost == []
    link.release("pause")
    await asyncio.sleep(AFTER_S)
    assert (far.received, far.lost) == (b"last words", [None])
    assert not link.relays


async def test_an_abort_is_learned_when_the_link_is_released(far: Peer) -> None:
    link, near = link_to(far)
    link.hold("pause")
    near.transport.abort()
    await asyncio.sleep(AFTER_S)
    assert far.lost == []
    link.release("pause")
    await asyncio.sleep(AFTER_S)
    assert len(far.lost) == 1
    assert isinstance(far.lost[0], ConnectionResetError)


async def test_a_closed_link_breaks_connections_and_refuses_new_ones_until_it_is_opened(far: Peer) -> None:
    link, near = link_to(far)
    link.close()
    await asyncio.sleep(AFTER_S)
    assert len(near.lost) == len(far.lost) == 1
    with pytest.raises(ConnectionRefusedError, match="was killed"):
        connect(link)
    link.open()
    connect(link).transport.write(b"again")
    await asyncio.sleep(AFTER_S)
    assert far.received == b"again"
