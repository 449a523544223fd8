"""Faults of the simulated network, one sentence each; and what a crash looks like from the other side."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from magnetar.sim.device import Crash
from magnetar.sim.loop import SimulationError
from magnetar.sim.machine import SimRuntime
from magnetar.sim.network import DatagramFaults, LinkDelay
from magnetar.sim.world import World
from magnetar.testing.waiting import until
from tests.unit.sim.sim_peers import Echo, Peer

PORT = 3181
FRAME = 8


class Net:
    """A server on node "b", driven from node "world"."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.network = world.network
        self.accepted: list[Peer] = []
        self.factory: Callable[[], Peer] = Echo
        world.add_node("b")

    def start(self) -> None:
        self.world.start("b", self._main)

    async def _main(self, runtime: SimRuntime) -> None:
        def accept() -> Peer:
            self.accepted.append(self.factory())
            return self.accepted[-1]

        await asyncio.get_running_loop().create_server(accept, "b", PORT)
        await asyncio.Event().wait()

    async def connect(self, host: str = "b") -> Peer:
        _, peer = await asyncio.get_running_loop().create_connection(Peer, host, PORT)
        return peer

    async def connected(self) -> Peer:
        """Known to both sides."""
        self.start()
        await asyncio.sleep(0.1)
        peer = await self.connect()
        await until(lambda: self.accepted, "the server accepts")
        await self.accepted[0].wait_for("made")
        return peer


@pytest.fixture(params=["1", "2", "3"])
def net(request: pytest.FixtureRequest) -> Iterator[Net]:
    with World(request.param) as world:
        yield Net(world)


def _frames(first: int, count: int) -> list[bytes]:
    return [number.to_bytes(FRAME, "big") for number in range(first, first + count)]


def _numbers(received: bytearray) -> list[int]:
    assert len(received) % FRAME == 0
    return [int.from_bytes(received[at : at + FRAME], "big") for at in range(0, len(received), FRAME)]


# --- TCP's promise ---


def test_order_is_kept_whatever_the_delays_and_reads_split_and_join_writes(net: Net) -> None:
    async def main() -> None:
        net.network.delay = LinkDelay(0.0, 0.01, tail=0.3, tail_max_s=2.0)
        net.network.split_rate = 0.3
        peer = await net.connected()
        for frame in _frames(0, 500):
            peer.transport.write(frame)
            await asyncio.sleep(0.001)
        await peer.wait_bytes(500 * FRAME, seconds=100)
        assert _numbers(peer.received) == list(range(500))
        sizes = [len(chunk) for chunk in net.accepted[0].chunks]
        assert min(sizes) < FRAME < max(sizes)

    net.world.run(main())


def test_host_is_reached_by_name_and_by_address_and_not_by_another_name(net: Net) -> None:
    async def main() -> None:
        peer = await net.connected()
        address = peer.transport.get_extra_info("peername")[0]
        again = await net.connect(address)
        assert again.transport.get_extra_info("peername") == (address, PORT)
        with pytest.raises(OSError, match="no host 'c'"):
            await net.connect("c")

    net.world.run(main())


def test_server_on_the_loopback_is_reached_from_its_own_host_only(net: Net) -> None:
    async def node(runtime: SimRuntime) -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Echo, "127.0.0.1", PORT)
        await loop.create_connection(Peer, "localhost", PORT)
        await server.serve_forever()

    async def main() -> None:
        net.world.start("b", node)
        await asyncio.sleep(0.1)
        assert net.network.counters.connections == 1
        with pytest.raises(ConnectionRefusedError):
            await net.connect()

    net.world.run(main())


def test_ports_that_nobody_chose_differ_and_repeat_with_the_run() -> None:
    def ports() -> list[int]:
        with World("1") as world:

            async def main() -> list[int]:
                loop = asyncio.get_running_loop()
                servers = [await loop.create_server(Peer, "", 0) for _ in range(3)]
                with pytest.raises(OSError, match="not an address"):
                    await loop.create_server(Peer, "10.9.9.9", 0)
                return [server.sockets[0].getsockname()[1] for server in servers]

            return world.run(main())

    assert len(set(ports())) == 3
    assert ports() == ports()


# --- blocks ---


def test_blocked_link_holds_bytes_back_and_loses_none(net: Net) -> None:
    async def main() -> None:
        peer = await net.connected()
        net.network.block("world", "b")
        for frame in _frames(0, 20):
            peer.transport.write(frame)
        await asyncio.sleep(5)
        assert net.accepted[0].received == b""
        net.network.heal()
        await peer.wait_bytes(20 * FRAME)
        assert _numbers(peer.received) == list(range(20))

    net.world.run(main())


def test_link_blocked_one_way_still_carries_the_other(net: Net) -> None:
    async def main() -> None:
        peer = await net.connected()
        other = net.accepted[0]
        net.network.block("world", "b")
        peer.transport.write(b"held")
        other.transport.write(b"goes on")
        await peer.wait_bytes(7)
        await asyncio.sleep(5)
        assert bytes(peer.received) == b"goes on"
        assert other.transport.outgoing.unsent_bytes == 7, "nobody has told the sender that it arrived"
        net.network.heal("world")
        await peer.wait_bytes(11)
        assert other.transport.outgoing.unsent_bytes == 0

    net.world.run(main())


def test_connect_through_a_block_hangs_and_goes_through_after_the_heal(net: Net) -> None:
    async def main() -> None:
        await net.connected()
        net.network.block("b", "world")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(net.connect(), 5)
        connecting = asyncio.ensure_future(net.connect())
        await asyncio.sleep(5)
        assert not connecting.done()
        net.network.heal()
        await asyncio.wait_for(connecting, 10)

    net.world.run(main())


def test_connect_that_never_gets_an_answer_ends_after_two_minutes(net: Net) -> None:
    async def main() -> None:
        net.network.isolate("b")
        with pytest.raises(TimeoutError, match="world to b"):
            await net.connect()
        assert 120 < net.world.loop.now < 300

    net.world.run(main())


def test_split_separates_groups_and_leaves_each_whole() -> None:
    with World("1") as world:
        names = ["a", "b", "c", "d"]
        for name in names:
            world.add_node(name)
        hosts = {name: world.network.host(name) for name in names}
        one, other = world.network.split_at_random(names)
        assert sorted(one + other) == names
        assert one
        assert other
        for name in names:
            for peer in names:
                together = {name, peer} <= set(one) or {name, peer} <= set(other)
                assert world.network.is_reachable(hosts[name], hosts[peer]) is together
        world.network.heal()
        assert all(world.network.is_reachable(hosts["a"], hosts[name]) for name in names)


# --- resets ---


def test_reset_loses_what_is_on_its_way_and_both_ends_hear_of_it(net: Net) -> None:
    async def main() -> None:
        peer = await net.connected()
        peer.transport.write(b"arrives")
        await peer.wait_bytes(7)
        peer.transport.write(b"is lost")
        assert net.network.reset("world", "b") == 1
        await peer.wait_for("lost")
        await net.accepted[0].wait_for("lost")
        assert isinstance(peer.error, ConnectionResetError)
        assert isinstance(net.accepted[0].error, ConnectionResetError)
        assert bytes(net.accepted[0].received) == b"arrives"
        peer.transport.write(b"ignored")
        assert net.network.reset("world", "b") == 0

    net.world.run(main())


def test_reset_reaches_an_end_that_does_not_read(net: Net) -> None:
    async def main() -> None:
        peer = await net.connected()
        peer.transport.pause_reading()
        net.network.reset_at_random(1.0)
        await peer.wait_for("lost")

    net.world.run(main())


def test_end_that_does_not_read_gets_nothing_of_what_a_killed_process_sent(net: Net) -> None:
    async def main() -> None:
        peer = await net.connected()
        peer.transport.pause_reading()
        net.accepted[0].transport.write(b"unread")
        await asyncio.sleep(1)
        net.world.crash("b", Crash.KILL)
        await asyncio.sleep(1)
        assert peer.received == b""
        if "lost" not in peer.events:  # It was an end, not a reset, and that is found by reading.
            peer.transport.resume_reading()
            await peer.wait_for("lost")
            assert peer.received == b"unread"

    net.world.run(main())


# --- crashes ---


def test_peer_of_a_killed_process_hears_of_it_from_the_kernel(net: Net) -> None:
    async def main() -> None:
        peer = await net.connected()
        begin = net.world.loop.now
        net.world.crash("b", Crash.KILL)
        assert "lost" not in peer.events
        await peer.wait_for("lost")
        assert net.world.loop.now > begin
        assert net.accepted[0].events == ["made"], "the dead hear nothing"
        with pytest.raises(ConnectionRefusedError):
            await net.connect()

    net.world.run(main())


def test_kernel_of_a_killed_process_still_sends_what_it_was_given() -> None:
    def received(seed: str, size: int) -> int:
        with World(seed) as world:
            net = Net(world)

            async def main() -> int:
                peer = await net.connected()
                net.accepted[0].transport.write(bytes(size))
                world.crash("b", Crash.KILL)
                await peer.wait_for("lost")
                return len(peer.received)

            return world.run(main())

    assert [received(str(seed), 1_000) for seed in range(5)] == [1_000] * 5
    assert 0 < min(received(str(seed), 2**20) for seed in range(5)) < 2**20, "its own buffer dies with the process"


def test_peer_of_a_machine_without_power_hears_nothing_until_it_writes_after_the_restart(net: Net) -> None:
    async def main() -> None:
        peer = await net.connected()
        net.accepted[0].transport.write(b"on its way")
        net.world.crash("b", Crash.POWER_LOSS)
        await asyncio.sleep(10)
        assert peer.events == ["made"]
        assert peer.received == b""
        peer.transport.write(b"anybody?")
        await asyncio.sleep(10)
        net.start()
        await peer.wait_for("lost")
        assert isinstance(peer.error, ConnectionResetError)
        assert await (await _echo(net, b"new")) == b"new"

    net.world.run(main())


async def _echo(net: Net, data: bytes) -> asyncio.Future[bytes]:
    await asyncio.sleep(0.5)
    peer = await net.connect()
    peer.transport.write(data)
    return asyncio.ensure_future(peer.wait_bytes(len(data)))


def test_half_open_connection_that_writes_nothing_stays_half_open(net: Net) -> None:
    async def main() -> None:
        peer = await net.connected()
        net.world.crash("b", Crash.POWER_LOSS)
        net.start()
        await asyncio.sleep(100)
        assert peer.events == ["made"]
        peer.transport.write(b"?")
        await peer.wait_for("lost")

    net.world.run(main())


def test_bytes_that_were_on_their_way_to_a_machine_without_power_are_sent_again_and_find_nobody(net: Net) -> None:
    async def main() -> None:
        peer = await net.connected()
        peer.transport.write(b"on its way")
        net.world.crash("b", Crash.POWER_LOSS)
        await asyncio.sleep(10)
        assert peer.events == ["made"]
        net.start()
        await peer.wait_for("lost")
        assert isinstance(peer.error, ConnectionResetError)

    net.world.run(main())


def test_server_that_closes_resets_what_waits_to_be_accepted(net: Net) -> None:
    closes = asyncio.Event()

    async def node(runtime: SimRuntime) -> None:
        server = await asyncio.get_running_loop().create_server(Echo, "b", PORT)
        await closes.wait()
        server.close()
        await asyncio.Event().wait()

    async def main() -> None:
        net.world.start("b", node)
        await asyncio.sleep(0.1)
        net.world.pause("b")
        closes.set()
        peer = await net.connect()
        await asyncio.sleep(1)
        net.world.resume("b")
        await peer.wait_for("lost")
        assert isinstance(peer.error, ConnectionResetError)

    net.world.run(main())


def test_connect_to_a_machine_without_power_hangs_until_it_is_back(net: Net) -> None:
    async def main() -> None:
        await net.connected()
        net.world.crash("b", Crash.POWER_LOSS)
        connecting = asyncio.ensure_future(net.connect())
        await asyncio.sleep(5)
        assert not connecting.done()
        net.start()
        await asyncio.wait_for(connecting, 20)

    net.world.run(main())


def test_paused_process_is_connected_and_written_to_by_way_of_its_kernel(net: Net) -> None:
    async def main() -> None:
        await net.connected()
        net.world.pause("b")
        peer = await net.connect()
        peer.transport.write(b"hello")
        await asyncio.sleep(30)
        assert peer.received == b""
        assert len(net.accepted) == 1
        net.world.resume("b")
        assert await peer.wait_bytes(5) == b"hello"

    net.world.run(main())


def test_process_that_ends_closes_its_connections_and_makes_room_for_another(net: Net) -> None:
    ends = asyncio.Event()

    async def node(runtime: SimRuntime) -> None:
        await asyncio.get_running_loop().create_server(Echo, "b", PORT)
        await ends.wait()

    async def main() -> None:
        net.world.start("b", node)
        await asyncio.sleep(0.1)
        peer = await net.connect()
        ends.set()
        await net.world.wait_exit("b")
        await peer.wait_for("lost")
        assert net.world.process("b") is None
        assert await (await _echo_after(net)) == b"again"

    net.world.run(main())


async def _echo_after(net: Net) -> asyncio.Future[bytes]:
    net.start()
    return await _echo(net, b"again")


def test_process_that_fails_fails_the_run_unless_somebody_takes_it(net: Net) -> None:
    async def node(runtime: SimRuntime) -> None:
        raise ValueError("cannot start")

    async def main() -> list[str]:
        ends: list[str] = []
        net.world.start("b", node, on_exit=lambda process, error: ends.append(f"{process.name}: {error}"))
        await asyncio.sleep(1)
        return ends

    assert net.world.run(main()) == ["b: cannot start"]

    async def unhandled() -> None:
        net.world.start("b", node)
        await asyncio.sleep(1)

    with pytest.raises(SimulationError, match="cannot start"):
        net.world.run(unhandled())


# --- datagrams ---


def _datagrams(seed: str, faults: DatagramFaults) -> list[int]:
    with World(seed, delay=LinkDelay(0.001, 0.01, tail=0)) as world:
        net = Net(world)
        net.factory = Peer
        world.network.link("world", "b").datagrams = faults

        async def main() -> list[int]:
            peer = await net.connected()
            for frame in _frames(0, 300):
                peer.transport.write(frame)
                await asyncio.sleep(0.001)
            await asyncio.sleep(5)
            assert net.accepted[0].events[0] == "made"
            assert all(len(chunk) == FRAME for chunk in net.accepted[0].chunks), "each write arrives whole"
            return _numbers(net.accepted[0].received)

        return world.run(main())


def test_datagrams_are_lost_doubled_and_overtaken_as_asked() -> None:
    everything = list(range(300))
    assert _datagrams("1", DatagramFaults(0, 0, 0)) != everything, "delays alone let one overtake another"
    assert sorted(_datagrams("1", DatagramFaults(0, 0, 0))) == everything
    lost = _datagrams("1", DatagramFaults(loss=0.2, duplicate=0, late=0))
    assert 200 < len(lost) < 280
    doubled = _datagrams("1", DatagramFaults(loss=0, duplicate=0.2, late=0))
    assert sorted(set(doubled)) == everything
    assert 330 < len(doubled) < 400
    late = _datagrams("1", DatagramFaults(loss=0, duplicate=0, late=0.2))
    assert sorted(late) == everything
    assert max(abs(number - at) for at, number in enumerate(late)) > 50
    assert _datagrams("1", DatagramFaults()) == _datagrams("1", DatagramFaults()) != _datagrams("2", DatagramFaults())


# --- the same seed, the same run ---

DIGEST = """
import asyncio
from magnetar.sim.device import Crash
from magnetar.sim.network import LinkDelay
from magnetar.sim.world import World
from tests.unit.sim.sim_peers import Echo, Peer

async def node(runtime):
    await asyncio.get_running_loop().create_server(Echo, "", 7)
    await asyncio.Event().wait()

async def talk(name):
    for number in range(20):
        try:
            async with asyncio.timeout(1):
                _, peer = await asyncio.get_running_loop().create_connection(Peer, name, 7)
                peer.transport.write(b"x" * number * 1000)
                await peer.wait_bytes(number * 1000)
                peer.transport.close()
        except OSError:
            await asyncio.sleep(0.1)

async def main(world, names):
    for name in names:
        world.start(name, node)
    async with asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(talk(name))
        for number in range(20):
            await asyncio.sleep(0.05)
            world.network.split_at_random(["world", *names])
            world.network.reset_at_random(0.3)
            await asyncio.sleep(0.05)
            world.network.heal()
            name = names[number % len(names)]
            world.crash(name, Crash.KILL if number % 2 else Crash.POWER_LOSS)
            await asyncio.sleep(0.05)
            world.start(name, node)

def seed(number):
    names = [f"node-{n}" for n in range(4)]
    with World(str(number), shuffle=0.1, delay=LinkDelay(0.001, 0.05, tail=0.05)) as world:
        for name in names:
            world.add_node(name)
        world.run(main(world, names))
        return world.loop.digest.value, world.loop.events, world.loop.now, world.network.counters

for number in range(3):
    print(seed(number), seed(number) == seed(number))
"""


def test_run_with_faults_does_not_depend_on_the_hash_seed() -> None:
    first, second = _output("1"), _output("2")
    assert first == second
    assert first.count(b"True") == 3
    assert first.count(b"resets=0") == 0


def _output(hash_seed: str) -> bytes:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    ran = subprocess.run([sys.executable, "-c", DIGEST], env=environment, capture_output=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr.decode()
    return ran.stdout
