"""The pool: who is registered and where, channels shared and made anew, and who is set aside."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from magnetar.config.ledger import LedgerConfig, PlacementConfig
from magnetar.errors import AccessDeniedError, BookieUnavailableError, ConfigError, MetadataUnavailableError
from magnetar.ids import BookieId
from magnetar.ledger.channels.bookies import CHANNELS_PER_BOOKIE_MAX, Bookies
from magnetar.metadata.bookkeeper.service_info import BOOKIE_RPC, BookieServiceInfo, Endpoint, encode_service_info
from magnetar.metadata.local import LocalStore
from magnetar.metadata.store import CreateMode, Watcher
from magnetar.quorum.candidates import DEFAULT_RACK
from magnetar.testing.cluster import BookieCluster
from magnetar.testing.waiting import until
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.messages import V2, ReadEntry
from tests.node.ledger.channels.channel_kit import SECONDS, Writer

LEDGER = 7
ASK = ReadEntry(LEDGER, 0, version=V2)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[BookieCluster]:
    async with BookieCluster(2, directory=tmp_path) as cluster:
        yield cluster


def bookies_of(
    cluster: BookieCluster,
    *,
    ledger: LedgerConfig | None = None,
    placement: PlacementConfig | None = None,
    **kwargs: object,
) -> Bookies:
    ledger = ledger or LedgerConfig(reconnect_backoff_ms=60_000, reconnect_backoff_max_ms=60_000)
    config = dataclasses.replace(cluster.config, ledger=ledger, placement=placement or PlacementConfig())
    return Bookies(cluster.store, config, cluster.runtime.entropy, **kwargs)  # type: ignore[arg-type]


@pytest.fixture
async def bookies(cluster: BookieCluster) -> AsyncIterator[Bookies]:
    """After a failed attempt it waits for a minute: nothing here happens by mere repetition."""
    async with bookies_of(cluster) as bookies:
        yield bookies


class TestWhoIsThere:
    async def test_registered_bookies_are_known_from_the_start(self, cluster: BookieCluster, bookies: Bookies) -> None:
        assert bookies.candidates().writable == tuple(sorted(cluster.bookie_ids))

    async def test_bookies_that_come_and_go_are_seen(self, cluster: BookieCluster, bookies: Bookies) -> None:
        gone = cluster.bookie_ids[0]
        await cluster.kill(0)
        await until(lambda: gone not in bookies.candidates().writable, "the killed one is not there any more")
        new = await cluster.add_bookie()
        await until(lambda: new.bookie_id in bookies.candidates().writable, "the new one is there")

    async def test_a_bookie_that_turns_read_only_is_seen(self, cluster: BookieCluster, bookies: Bookies) -> None:
        bookie = cluster.bookie_ids[0]
        cluster.set_read_only(0, True)
        await until(lambda: bookie in bookies.candidates().read_only, "it is read-only")
        cluster.set_read_only(0, False)
        await until(lambda: bookie in bookies.candidates().writable, "it is writable again")

    async def test_what_was_known_stays_while_the_metadata_cannot_be_reached(
        self, cluster: BookieCluster, bookies: Bookies
    ) -> None:
        before = bookies.candidates().writable
        store = cluster.store
        cluster.server.cut(store)  # type: ignore[arg-type]
        assert bookies.candidates().writable == before
        async with asyncio.timeout(LedgerConfig().connect_timeout_ms / 1000 / 3):  # Without waiting for the store.
            assert not (await bookies.channel(cluster.bookie_ids[0])).is_lost
        cluster.server.mend(store)  # type: ignore[arg-type]
        new = await cluster.add_bookie()
        await until(lambda: new.bookie_id in bookies.candidates().writable, "what came later is seen")

    async def test_a_metadata_store_that_does_not_answer_is_an_error(self, cluster: BookieCluster) -> None:
        metadata = dataclasses.replace(cluster.config.metadata, operation_timeout_ms=50)
        config = dataclasses.replace(cluster.config, metadata=metadata)
        store = cluster.server.connect()
        cluster.server.cut(store)
        with pytest.raises(MetadataUnavailableError, match="bookies of the cluster"):
            await Bookies(store, config, cluster.runtime.entropy).start()
        await store.aclose()

    async def test_a_metadata_store_that_refuses_is_an_error(self, cluster: BookieCluster) -> None:
        class Refusing(LocalStore):
            async def children(self, path: str, *, watch: Watcher | None = None) -> list[str]:
                raise AccessDeniedError("not for you")

        async with Refusing(cluster.server, cluster.config.metadata) as store:
            with pytest.raises(AccessDeniedError, match="not for you"):
                await Bookies(store, cluster.config, cluster.runtime.entropy).start()

    async def test_racks_are_followed_and_a_malformed_node_changes_nothing(
        self, cluster: BookieCluster, bookies: Bookies, caplog: pytest.LogCaptureFixture
    ) -> None:
        bookie = cluster.bookie_ids[0]
        assert bookies.candidates().topology.rack_of(bookie) == DEFAULT_RACK
        await cluster.store.create("/bookies", _racks({bookie: "/eu/r1"}))
        await until(lambda: bookies.candidates().topology.rack_of(bookie) == "/eu/r1", "the rack is known")
        await cluster.store.put("/bookies", b"{")
        await cluster.store.put("/bookies", _racks({bookie: "/eu/r2", cluster.bookie_ids[1]: "/us/r3"}))
        await until(lambda: bookies.candidates().topology.rack_of(bookie) == "/eu/r2", "the new rack is known")
        caplog.clear()
        await cluster.store.put("/bookies", b"{")
        await until(lambda: "racks could not be read" in caplog.text, "the malformed node was read")
        assert bookies.candidates().topology.rack_of(bookie) == "/eu/r2"

    async def test_configured_racks_go_first(self, cluster: BookieCluster) -> None:
        first, second = cluster.bookie_ids
        await cluster.store.create("/bookies", _racks({first: "/eu/r1", second: "/eu/r2"}))
        async with bookies_of(cluster, placement=PlacementConfig(racks=f"{first}=/us/r9")) as bookies:
            topology = bookies.candidates().topology
            assert topology.rack_of(first) == "/us/r9"

    async def test_free_disk_is_asked_for_where_placement_goes_by_it(self, cluster: BookieCluster) -> None:
        async with bookies_of(cluster, placement=PlacementConfig(disk_weight_enabled=True)) as bookies:
            await until(lambda: len(bookies.candidates().free_bytes) == 2, "both have told")
            assert all(free > 0 for free in bookies.candidates().free_bytes.values())

    async def test_a_bookie_that_fails_too_often_is_set_aside(self, cluster: BookieCluster, bookies: Bookies) -> None:
        bookie = cluster.bookie_ids[0]
        for _ in range(PlacementConfig().quarantine_errors):
            assert bookie not in bookies.candidates().quarantined
            bookies.report_failure(bookie)
        assert bookie in bookies.candidates().quarantined


def _racks(racks: dict[BookieId, str]) -> bytes:
    return json.dumps({"default": {bookie: {"rack": rack} for bookie, rack in racks.items()}}).encode()


class TestChannels:
    async def test_a_channel_is_shared_and_so_is_the_attempt_to_make_it(
        self, cluster: BookieCluster, bookies: Bookies
    ) -> None:
        bookie = cluster.bookie_ids[0]
        assert bookies.channel_nowait(bookie) is None
        channels = await asyncio.gather(*[bookies.channel(bookie) for _ in range(10)])
        assert len(set(map(id, channels))) == 1
        assert bookies.channel_nowait(bookie) is channels[0]
        await channels[0].request(ASK, timeout_s=SECONDS)
        assert cluster.nodes[0].running.counters.opened == 1

    async def test_a_second_writer_of_a_ledger_gets_a_channel_of_its_own(
        self, cluster: BookieCluster, bookies: Bookies
    ) -> None:
        async def attach() -> object:
            channel = await bookies.channel(cluster.bookie_ids[0], ledger_id=LEDGER)
            channel.attach(LEDGER, Writer())
            return channel

        channels = await asyncio.gather(*[attach() for _ in range(3)])
        assert len(set(map(id, channels))) == 3
        other = await bookies.channel(cluster.bookie_ids[0], ledger_id=LEDGER + 1)
        assert other is channels[0]

    async def test_one_ledger_cannot_take_connections_without_end(
        self, cluster: BookieCluster, bookies: Bookies
    ) -> None:
        for _ in range(CHANNELS_PER_BOOKIE_MAX):
            channel = await bookies.channel(cluster.bookie_ids[0], ledger_id=LEDGER)
            channel.attach(LEDGER, Writer())
        with pytest.raises(BookieUnavailableError, match="too many"):
            await bookies.channel(cluster.bookie_ids[0], ledger_id=LEDGER)

    async def test_a_lost_channel_is_replaced(self, cluster: BookieCluster) -> None:
        bookie = cluster.bookie_ids[0]
        async with bookies_of(cluster, ledger=LedgerConfig(reconnect_backoff_ms=1)) as bookies:
            old = await bookies.channel(bookie)
            assert (await old.request(ASK, timeout_s=SECONDS)).code is Code.ENOLEDGER
            await cluster.restart(0)
            await until(lambda: old.is_lost, "the old one is lost")
            new = await bookies.channel(bookie)
            assert new is not old
            assert (await new.request(ASK, timeout_s=SECONDS)).code is Code.ENOLEDGER

    async def test_lost_channels_are_forgotten(self, cluster: BookieCluster, bookies: Bookies) -> None:
        for _ in range(CHANNELS_PER_BOOKIE_MAX + 1):
            channel = await bookies.channel(cluster.bookie_ids[0])
            channel.lose(BookieUnavailableError("enough"))
        way = bookies._dialers[cluster.bookie_ids[0]]
        await until(lambda: not way.channels, "none is kept")

    async def test_after_a_failure_nobody_tries_before_the_delay_is_over_unless_the_bookie_registers(
        self, cluster: BookieCluster, bookies: Bookies
    ) -> None:
        bookie = cluster.bookie_ids[0]
        await cluster.kill(0)
        await until(lambda: bookie not in bookies.candidates().writable, "it is gone")
        with pytest.raises(BookieUnavailableError, match="does it run"):
            await bookies.channel(bookie)
        with pytest.raises(BookieUnavailableError, match=r"tried again in \d+ ms"):
            await bookies.channel(bookie)
        await cluster.restart(0)
        await until(lambda: bookie in bookies.candidates().writable, "it is back")
        assert not (await bookies.channel(bookie)).is_lost

    async def test_the_delay_ends_by_itself(self, cluster: BookieCluster) -> None:
        ledger = LedgerConfig(reconnect_backoff_ms=1, reconnect_backoff_max_ms=4)
        async with bookies_of(cluster, ledger=ledger) as bookies:
            bookie = cluster.bookie_ids[0]
            messages: list[str] = []
            await cluster.kill(0)

            async def fail() -> bool:
                with pytest.raises(BookieUnavailableError) as caught:
                    await bookies.channel(bookie)
                messages.append(str(caught.value))
                return sum("tried again" not in message for message in messages) >= 5

            await until(fail, "five attempts were made")

    async def test_a_connection_that_is_accepted_and_closed_at_once_is_a_failed_attempt(
        self, cluster: BookieCluster
    ) -> None:
        ledger = LedgerConfig(reconnect_backoff_ms=60_000, reconnect_backoff_max_ms=60_000)
        async with closing_server(kept=0) as server, bookies_of(cluster, ledger=ledger) as bookies:
            with contextlib.suppress(BookieUnavailableError):
                lost = await bookies.channel(server.bookie_id)
                await until(lambda: lost.is_lost and not bookies._dialers[server.bookie_id].channels, "it is lost")
            with pytest.raises(BookieUnavailableError, match=r"tried again in \d+ ms"):
                await bookies.channel(server.bookie_id)
            assert server.accepted == 1

    async def test_the_delay_grows_although_every_connection_is_accepted(self, cluster: BookieCluster) -> None:
        ledger = LedgerConfig(reconnect_backoff_ms=20, reconnect_backoff_max_ms=60_000)
        async with closing_server(kept=0) as server, bookies_of(cluster, ledger=ledger) as bookies:

            async def is_set_aside() -> bool:
                with contextlib.suppress(BookieUnavailableError):
                    await bookies.channel(server.bookie_id)
                return bookies._dialers[server.bookie_id]._failures >= 3

            await until(is_set_aside, "three attempts have failed in a row")

    async def test_a_second_channel_that_is_closed_at_once_is_not_tried_for_ever(self, cluster: BookieCluster) -> None:
        async with closing_server(kept=1) as server, bookies_of(cluster) as bookies:
            first = await bookies.channel(server.bookie_id, ledger_id=LEDGER)
            first.attach(LEDGER, Writer())

            async def second() -> None:
                channel = await bookies.channel(server.bookie_id, ledger_id=LEDGER)
                await until(lambda: channel.is_lost, "it is lost")
                await bookies.channel(server.bookie_id, ledger_id=LEDGER)

            async with asyncio.timeout(SECONDS):
                with pytest.raises(BookieUnavailableError):
                    await second()
            assert server.accepted <= 3
            assert not first.is_lost

    async def test_who_leaves_does_not_end_the_attempt_for_others(
        self, cluster: BookieCluster, bookies: Bookies
    ) -> None:
        bookie = cluster.bookie_ids[0]
        first = asyncio.ensure_future(bookies.channel(bookie))
        second = asyncio.ensure_future(bookies.channel(bookie))
        await asyncio.sleep(0)
        first.cancel()
        assert not (await second).is_lost

    async def test_a_bookie_that_moved_is_found_at_its_new_place(
        self, cluster: BookieCluster, bookies: Bookies
    ) -> None:
        """Names alone do not tell that the same id is elsewhere now."""
        moved = BookieId("moved")
        for node in cluster.nodes:
            info = BookieServiceInfo((Endpoint(id="b", host="127.0.0.1", port=node.port, protocol=BOOKIE_RPC),))
            path = cluster.paths.registration(moved)
            if await cluster.store.get(path) is None:
                await cluster.store.create(path, encode_service_info(info), mode=CreateMode.EPHEMERAL)
            else:
                await cluster.store.put(path, encode_service_info(info))
            channel = await bookies.channel(moved)
            await channel.request(ASK, timeout_s=SECONDS)
            assert node.running.counters.opened == 1
            channel.lose(BookieUnavailableError("it moves"))

    async def test_an_unregistered_bookie_is_tried_at_its_id(self, cluster: BookieCluster, bookies: Bookies) -> None:
        node = cluster.nodes[0]
        await cluster.store.delete(cluster.paths.registration(node.bookie_id))
        assert not (await bookies.channel(BookieId(f"localhost:{node.port}"))).is_lost
        with pytest.raises(BookieUnavailableError, match="not registered"):
            await bookies.channel(BookieId("unheard-of"))

    async def test_channels_that_nobody_uses_are_closed_and_others_stay(self, cluster: BookieCluster) -> None:
        async with bookies_of(cluster, ledger=LedgerConfig(channel_idle_ms=20)) as bookies:
            unused, used = [await bookies.channel(bookie) for bookie in cluster.bookie_ids]
            used.attach(LEDGER, Writer())
            await until(lambda: unused.is_lost, "the unused one is closed")
            assert not used.is_lost
            again = await bookies.channel(cluster.bookie_ids[0])
            assert (await again.request(ASK, timeout_s=SECONDS)).code is Code.ENOLEDGER

    async def test_closing_the_pool_tells_whoever_uses_a_channel(self, cluster: BookieCluster) -> None:
        bookies = bookies_of(cluster)
        await bookies.start()
        writer = Writer()
        (await bookies.channel(cluster.bookie_ids[0])).attach(LEDGER, writer)
        await bookies.aclose()
        assert len(writer.losses) == 1
        with pytest.raises(BookieUnavailableError, match="closed"):
            await bookies.channel(cluster.bookie_ids[0])

    async def test_a_bookie_of_this_process_is_reached_without_a_socket(self, cluster: BookieCluster) -> None:
        async with bookies_of(cluster, local=cluster.local) as bookies:
            channel = await bookies.channel(cluster.bookie_ids[0])
            assert (await channel.request(ASK, timeout_s=SECONDS)).code is Code.ENOLEDGER
            assert type(channel._v2._transport).__name__ == "LocalTransport"  # type: ignore[attr-defined]
            await cluster.stop(0)
            await until(lambda: channel.is_lost, "its end is heard of")
            with pytest.raises(BookieUnavailableError, match="is not running"):
                await bookies.channel(cluster.bookie_ids[0])


class ClosingServer:
    """Accepts connections, keeps the first few, and closes all further ones at once."""

    def __init__(self, kept: int) -> None:
        self.accepted = 0
        self.bookie_id = BookieId("")
        self._kept = kept
        self._transports: list[asyncio.StreamWriter] = []

    async def accept(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self._transports.append(writer)
        if self.accepted > self._kept:
            writer.transport.abort()

    def abort(self) -> None:
        for writer in self._transports:
            writer.transport.abort()


@contextlib.asynccontextmanager
async def closing_server(*, kept: int) -> AsyncIterator[ClosingServer]:
    closing = ClosingServer(kept)
    server = await asyncio.start_server(closing.accept, "127.0.0.1", 0)
    closing.bookie_id = BookieId(f"localhost:{server.sockets[0].getsockname()[1]}")
    yield closing
    server.close()
    closing.abort()
    await server.wait_closed()


def test_a_first_delay_above_the_longest_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"ledger.reconnect_backoff_ms is 10"):
        LedgerConfig(reconnect_backoff_ms=10, reconnect_backoff_max_ms=5)


class TestBugs:
    async def test_what_is_no_bookies_fault_is_raised_as_it_is_and_not_tried_again_at_once(
        self, cluster: BookieCluster, bookies: Bookies, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        attempts = 0

        async def dial(*_: object) -> None:
            nonlocal attempts
            attempts += 1
            raise ValueError("a bug")

        monkeypatch.setattr(bookies, "_dial", dial)
        waiting = [bookies.channel(cluster.bookie_ids[0]) for _ in range(3)]
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert [str(error) for error in found] == ["a bug"] * 3
        with pytest.raises(BookieUnavailableError, match="a bug"):
            await bookies.channel(cluster.bookie_ids[0])
        assert attempts == 1
