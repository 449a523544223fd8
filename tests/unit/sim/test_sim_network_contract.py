"""Programs that talk over TCP, on real sockets of asyncio and uvloop and on the simulated network."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from magnetar.sim.world import World
from magnetar.testing.waiting import until
from tests.unit.sim.sim_peers import BufferedPeer, Echo, Peer

Run = Callable[[Coroutine[Any, Any, Any]], Any]
HOST = "127.0.0.1"
DATA = b"".join(number.to_bytes(4, "big") for number in range(75_000))


def _simulated(main: Coroutine[Any, Any, Any], seed: str) -> Any:
    with World(seed, shuffle=0.1) as world:
        world.network.split_rate = 0.3
        return world.run(main)


@pytest.fixture(params=["asyncio", "uvloop", "sim 1", "sim 2", "sim 3"])
def run(request: pytest.FixtureRequest) -> Run:
    if request.param.startswith("sim"):
        return lambda main: _simulated(main, request.param)
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def run_real(main: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(main)

    return run_real


async def _serve(factory: Callable[[], Peer]) -> tuple[asyncio.Server, int, list[Peer]]:
    accepted: list[Peer] = []

    def accept() -> Peer:
        accepted.append(factory())
        return accepted[-1]

    server = await asyncio.get_running_loop().create_server(accept, HOST, 0)
    return server, server.sockets[0].getsockname()[1], accepted


async def _connect(port: int, factory: Callable[[], Peer] = Peer) -> Peer:
    _, peer = await asyncio.get_running_loop().create_connection(factory, HOST, port)
    return peer


async def _pair(factory: Callable[[], Peer] = Peer) -> tuple[asyncio.Server, Peer, Peer]:
    """The server, the client's end, the server's end."""
    server, port, accepted = await _serve(factory)
    client = await _connect(port)
    await until(lambda: accepted, "the server accepts")
    await accepted[0].wait_for("made")
    return server, client, accepted[0]


async def _end(server: asyncio.Server, *peers: Peer) -> None:
    for peer in peers:
        peer.transport.abort()
    for peer in peers:
        await peer.lost
    server.close()


@pytest.mark.parametrize("factory", [Peer, BufferedPeer])
def test_bytes_arrive_in_order_and_once(run: Run, factory: Callable[[], Peer]) -> None:
    async def main() -> None:
        server, client, other = await _pair(factory)
        client.transport.write(DATA[:10])
        client.transport.writelines([DATA[10:20], bytearray(DATA[20:1000]), memoryview(DATA)[1000:]])
        assert await other.wait_bytes(len(DATA)) == DATA
        await _end(server, client, other)

    run(main())


def test_echo_comes_back(run: Run) -> None:
    async def main() -> None:
        server, client, other = await _pair(Echo)
        for at in range(0, 10_000, 1_000):
            client.transport.write(DATA[at : at + 1_000])
        assert await client.wait_bytes(10_000) == DATA[:10_000]
        await _end(server, client, other)

    run(main())


def test_writer_is_paused_while_nobody_reads_and_resumed_afterwards(run: Run) -> None:
    async def main() -> None:
        server, client, other = await _pair()
        other.transport.pause_reading()
        client.transport.set_write_buffer_limits(high=10_000, low=1_000)
        sent = 0
        async with asyncio.timeout(10):
            while "pause" not in client.events:
                client.transport.write(bytes(50_000))
                sent += 50_000
                await asyncio.sleep(0)
        assert client.transport.get_write_buffer_size() > 10_000
        assert len(other.received) < sent
        assert not other.transport.is_reading()
        other.transport.resume_reading()
        assert other.transport.is_reading()
        await client.wait_for("resume")
        await other.wait_bytes(sent)
        assert client.events == ["made", "pause", "resume"]
        await _end(server, client, other)

    run(main())


def test_what_was_written_before_a_close_arrives_before_the_end(run: Run) -> None:
    async def main() -> None:
        server, client, other = await _pair()
        client.transport.write(DATA)
        client.transport.close()
        assert client.transport.is_closing()
        client.transport.write(b"too late")
        await other.wait_for("lost")
        assert bytes(other.received) == DATA
        assert other.events == ["made", "end", "lost"]
        assert other.error is None
        await client.wait_for("lost")
        assert (client.events[-1], client.error) == ("lost", None)
        server.close()

    run(main())


def test_closing_transport_is_lost_only_when_its_buffer_is_empty(run: Run) -> None:
    async def main() -> None:
        size = 20 * 2**20
        server, client, other = await _pair()
        other.transport.pause_reading()
        client.transport.write(bytes(size))
        client.transport.close()
        await asyncio.sleep(0.05)
        assert "lost" not in client.events
        other.transport.resume_reading()
        await client.wait_for("lost")
        await other.wait_bytes(size)
        await other.wait_for("lost")
        server.close()

    run(main())


def test_half_closed_connection_still_carries_the_other_direction(run: Run) -> None:
    async def main() -> None:
        server, client, other = await _pair(lambda: Peer(keeps_open=True))
        assert client.transport.can_write_eof()
        client.transport.write(b"question")
        client.transport.write_eof()
        await other.wait_for("end")
        assert bytes(other.received) == b"question"
        other.transport.write(DATA)
        assert await client.wait_bytes(len(DATA)) == DATA
        with pytest.raises(RuntimeError):
            client.transport.write(b"more")
        other.transport.close()
        await client.wait_for("lost")
        assert (client.error, other.error) == (None, None)
        server.close()

    run(main())


def test_abort_ends_both_sides(run: Run) -> None:
    async def main() -> None:
        server, client, other = await _pair()
        client.transport.abort()
        await client.wait_for("lost")
        assert client.error is None
        await other.wait_for("lost")
        server.close()

    run(main())


def test_write_to_a_peer_that_is_gone_breaks_the_connection(run: Run) -> None:
    async def main() -> None:
        server, client, other = await _pair(lambda: Peer(keeps_open=True))
        client.transport.abort()
        await other.wait_for("end")
        async with asyncio.timeout(10):
            while "lost" not in other.events:
                other.transport.write(b"anybody?")
                await asyncio.sleep(0.001)
        assert isinstance(other.error, ConnectionError)
        server.close()

    run(main())


def test_connect_is_refused_where_nobody_listens(run: Run) -> None:
    async def main() -> None:
        server, port, _ = await _serve(Peer)
        server.close()
        with pytest.raises(ConnectionRefusedError):
            await _connect(port)

    run(main())


def test_server_that_does_not_serve_yet_refuses_and_one_that_does_holds_its_port(run: Run) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Peer, HOST, 0, backlog=10, start_serving=False)
        assert not server.is_serving()
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ConnectionRefusedError):
            await _connect(port)
        await server.start_serving()
        assert server.is_serving()
        with pytest.raises(OSError) as refusal:  # noqa: PT011 - the code is checked below
            await loop.create_server(Peer, HOST, port)
        assert refusal.value.errno == errno.EADDRINUSE
        client = await _connect(port)
        client.transport.abort()
        await client.lost
        server.close()
        assert not server.is_serving()

    run(main())


def test_closed_server_accepts_nobody_and_its_connections_live_on(run: Run) -> None:
    async def main() -> None:
        server, client, other = await _pair(Echo)
        port = client.transport.get_extra_info("peername")[1]
        server.close()
        with pytest.raises(ConnectionRefusedError):
            await _connect(port)
        client.transport.write(b"still there?")
        assert await client.wait_bytes(12) == b"still there?"
        client.transport.close()
        await other.wait_for("lost")
        async with asyncio.timeout(10):
            await server.wait_closed()

    run(main())


def test_names_of_both_ends_agree(run: Run) -> None:
    async def main() -> None:
        server, client, other = await _pair()
        near, far = client.transport.get_extra_info("sockname"), client.transport.get_extra_info("peername")
        assert other.transport.get_extra_info("peername")[1] == near[1]
        assert other.transport.get_extra_info("sockname")[1] == far[1]
        assert client.transport.get_extra_info("nothing", "default") == "default"
        await _end(server, client, other)

    run(main())


def test_streams_work(run: Run) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line.upper())
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def main() -> None:
        server = await asyncio.start_server(answer, HOST, 0)
        reader, writer = await asyncio.open_connection(HOST, server.sockets[0].getsockname()[1])
        for word in (b"one\n", b"two\n"):
            writer.write(word)
            assert await reader.readline() == word.upper()
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        server.close()

    run(main())


def test_connect_that_is_given_up_leaves_no_connection(run: Run) -> None:
    async def main() -> None:
        server, port, accepted = await _serve(Peer)
        for turns in range(6):
            connecting = asyncio.ensure_future(_connect(port))
            for _ in range(turns):
                await asyncio.sleep(0)
            if not connecting.done():
                connecting.cancel()
            outcome = (await asyncio.gather(connecting, return_exceptions=True))[0]
            if isinstance(outcome, Peer):
                outcome.transport.abort()
        await asyncio.sleep(0.05)
        for peer in accepted:
            await peer.wait_for("lost")
        server.close()

    run(main())
