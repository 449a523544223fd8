"""Registration over lost sessions, old nodes, twins and changes of mode."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from magnetar.bookie.registration import Registration, RegistrationState
from magnetar.config.metadata import MetadataConfig
from magnetar.errors import BookieRegisteredError, CookieMismatchError, MetadataUnavailableError, StoreClosedError
from magnetar.ids import BookieId
from magnetar.metadata.bookkeeper.cookies import Cookie, CookieStore
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.bookkeeper.service_info import BOOKIE_RPC, BookieServiceInfo, Endpoint, decode_service_info
from magnetar.metadata.local import Fate, Link, LocalStore
from magnetar.metadata.memory import MemoryServer
from magnetar.metadata.store import ANY_VERSION, CreateMode, Node, Request, Transact
from magnetar.testing.waiting import until

PATHS = BookKeeperPaths()
ID = BookieId("bk1.example.org:3181")
WRITABLE = "/ledgers/available/bk1.example.org:3181"
READ_ONLY = "/ledgers/available/readonly/bk1.example.org:3181"
INFO = BookieServiceInfo((Endpoint(id="bookie", host="bk1.example.org", port=3181, protocol=BOOKIE_RPC),))
LONG_SESSION = MetadataConfig(url="memory:", session_timeout_ms=60_000)

Register = Callable[..., Awaitable[tuple[Registration, LocalStore]]]


class World:
    """A cluster with a cookie of our bookie, and what a client sees of it."""

    def __init__(self, server: MemoryServer) -> None:
        self.server = server
        self.client = server.connect(LONG_SESSION)
        self.open: list[Registration] = []

    async def node(self, path: str) -> Node | None:
        return await self.client.get(path)

    async def modes(self) -> list[str]:
        return [name for name, path in (("w", WRITABLE), ("r", READ_ONLY)) if await self.node(path) is not None]

    def bookie(self, store: LocalStore, *, read_only: bool = False) -> Registration:
        registration = Registration(store, PATHS, ID, INFO, read_only=read_only)
        self.open.append(registration)
        return registration

    async def registered(self, *, read_only: bool = False, link: Link | None = None) -> tuple[Registration, LocalStore]:
        store = self.server.connect(link=link)
        registration = self.bookie(store, read_only=read_only)
        await registration.start()
        return registration, store


@pytest.fixture
async def world(server: MemoryServer) -> AsyncIterator[World]:
    world = World(server)
    cookie = Cookie(bookie_id=ID, journal_dirs=("/j",), ledger_dirs=("/l",))
    await CookieStore(world.client, PATHS).create(cookie)
    yield world
    for registration in world.open:
        await registration.aclose()


async def test_a_started_bookie_is_found_with_its_endpoints(world: World) -> None:
    registration, store = await world.registered()
    node = await world.node(WRITABLE)
    assert node is not None
    assert decode_service_info(ID, node.value) == INFO
    assert node.owner == store.session.id
    assert registration.state is RegistrationState.REGISTERED
    assert await world.modes() == ["w"]


async def test_a_bookie_that_starts_read_only_is_never_seen_writable(world: World) -> None:
    await world.registered(read_only=True)
    assert await world.modes() == ["r"]


async def test_the_parent_of_read_only_nodes_is_made_if_it_is_missing(world: World) -> None:
    await world.client.delete(PATHS.readonly)
    await world.registered(read_only=True)
    assert await world.modes() == ["r"]


async def test_a_closed_registration_leaves_no_node(world: World) -> None:
    for read_only in (False, True):
        registration, _ = await world.registered(read_only=read_only)
        await registration.aclose()
        assert await world.modes() == []
        await registration.aclose()  # Again is harmless.


# --- change of mode ---------------------------------------------------------------------------------------------------


async def test_a_change_of_mode_is_one_step_for_every_watcher(world: World) -> None:
    registration, _ = await world.registered()
    seen: list[list[str]] = []
    for wanted in (True, False, True):
        changed = asyncio.Event()
        await world.client.children(PATHS.available, watch=lambda _, event=changed: event.set())
        registration.set_read_only(wanted)
        await changed.wait()
        seen.append(await world.modes())
        await registration.wait_registered()
    assert seen == [["r"], ["w"], ["r"]]


async def test_a_change_that_is_taken_back_at_once_ends_in_the_last_wish(world: World) -> None:
    registration, _ = await world.registered()
    for wanted in (True, False, True, False, True):
        registration.set_read_only(wanted)
        await asyncio.sleep(0)
    await registration.wait_registered()
    assert await world.modes() == ["r"]
    assert registration.is_read_only


async def test_a_wish_that_changes_while_it_is_being_fulfilled_is_not_reported_as_fulfilled(world: World) -> None:
    class ChangeTheWish(Link):
        wish: Callable[[], None] | None = None

        def fate(self, request: Request) -> Fate:
            if isinstance(request, Transact) and self.wish is not None:
                wish, self.wish = self.wish, None
                wish()
            return Fate.DELIVERED

    link = ChangeTheWish()
    registration, _ = await world.registered(link=link)
    link.wish = lambda: registration.set_read_only(False)
    registration.set_read_only(True)
    await registration.wait_registered()
    assert await world.modes() == ["w"]


async def test_a_change_while_disconnected_is_made_when_the_connection_is_back(world: World) -> None:
    registration, store = await world.registered()
    world.server.cut(store)
    assert registration.state is RegistrationState.DISCONNECTED
    registration.set_read_only(True)
    assert registration.is_read_only, "the bookie itself refuses entries at once"
    world.server.mend(store)
    await until(lambda: registration.state is RegistrationState.REGISTERED, "registered again")
    assert await world.modes() == ["r"]


@pytest.mark.parametrize("fate", [Fate.ANSWER_LOST, Fate.REQUEST_LOST])
async def test_a_lost_answer_ends_in_exactly_one_node(fate: Fate, world: World) -> None:
    class LoseTransactions(Link):
        left = 2

        def fate(self, request: Request) -> Fate:
            if isinstance(request, Transact) and self.left:
                self.left -= 1
                return fate
            return Fate.DELIVERED

    link = LoseTransactions()
    registration, _ = await world.registered(link=link)
    assert await world.modes() == ["w"]
    registration.set_read_only(True)
    await until(lambda: registration.state is RegistrationState.REGISTERED, "read-only")
    assert await world.modes() == ["r"]
    assert link.left == 0


# --- sessions ---------------------------------------------------------------------------------------------------------


async def test_a_short_disconnection_keeps_the_same_node(world: World) -> None:
    registration, store = await world.registered()
    before = await world.node(WRITABLE)
    world.server.cut(store)
    assert registration.state is RegistrationState.DISCONNECTED
    world.server.mend(store)
    await until(lambda: registration.state is RegistrationState.REGISTERED, "registered again")
    assert await world.node(WRITABLE) == before
    assert registration.registrations == 1


@pytest.mark.parametrize("read_only", [False, True])
async def test_an_expired_session_is_followed_by_a_new_registration(read_only: bool, world: World) -> None:
    registration, store = await world.registered(read_only=read_only)
    states: list[RegistrationState] = []
    store.session.listen(lambda _: states.append(registration.state))
    await world.server.expire(store)
    assert RegistrationState.LOST in states
    await until(lambda: registration.state is RegistrationState.REGISTERED, "registered again")
    node = await world.node(READ_ONLY if read_only else WRITABLE)
    assert node is not None
    assert node.owner == store.session.id
    assert registration.registrations == 2


async def test_many_expired_sessions_one_after_the_other_end_registered(world: World) -> None:
    registration, store = await world.registered()
    for number in range(10):
        registration.set_read_only(bool(number % 2))
        await world.server.expire(store)
    await until(lambda: registration.state is RegistrationState.REGISTERED, "registered again")
    assert await world.modes() == ["r"]


async def test_a_closed_session_is_reported_as_fatal(world: World) -> None:
    registration, store = await world.registered()
    await store.aclose()
    async with asyncio.timeout(10):
        error = await registration.wait_failed()
    assert isinstance(error, StoreClosedError)
    assert registration.state is RegistrationState.FAILED
    with pytest.raises(StoreClosedError):
        await registration.wait_registered()


async def test_a_start_without_a_connection_ends_in_time(world: World) -> None:
    store = world.server.connect()
    world.server.cut(store)
    registration = world.bookie(store)
    with pytest.raises(MetadataUnavailableError, match="could not be registered in time"):
        await registration.start(timeout_s=0.05)
    assert registration.state is RegistrationState.CLOSED


# --- old nodes and twins ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("old_path", [WRITABLE, READ_ONLY])
@pytest.mark.parametrize("read_only", [False, True])
async def test_an_old_node_is_waited_out_and_never_adopted(old_path: str, read_only: bool, world: World) -> None:
    former = world.server.connect()
    await former.create(old_path, b"", mode=CreateMode.EPHEMERAL)
    world.server.cut(former)  # Killed: its session lives on for the session timeout.
    registration, store = await world.registered(read_only=read_only)
    node = await world.node(READ_ONLY if read_only else WRITABLE)
    assert node is not None
    assert node.owner == store.session.id
    assert await world.modes() == (["r"] if read_only else ["w"])
    await former.aclose()
    assert registration.registrations == 1


@pytest.mark.parametrize("twin_is_read_only", [False, True])
async def test_a_node_that_a_living_twin_holds_is_neither_taken_nor_deleted(
    twin_is_read_only: bool, world: World
) -> None:
    path = READ_ONLY if twin_is_read_only else WRITABLE
    twin, twin_store = await world.registered(read_only=twin_is_read_only)
    before = await world.node(path)
    second = world.bookie(world.server.connect())
    with pytest.raises(BookieRegisteredError, match=f"another process is registered as bookie {ID}"):
        await second.start()
    assert await world.node(path) == before
    assert await world.modes() == (["r"] if twin_is_read_only else ["w"])
    assert before is not None
    assert before.owner == twin_store.session.id
    assert twin.state is RegistrationState.REGISTERED


async def test_closing_a_bookie_that_never_got_in_does_not_delete_the_others_node(world: World) -> None:
    await world.registered()
    second = world.bookie(world.server.connect())
    starting = asyncio.ensure_future(second.start())
    await until(lambda: second._task is not None, "it has begun")
    starting.cancel()
    await asyncio.wait([starting])
    await second.aclose()
    assert await world.modes() == ["w"]


async def test_a_twin_that_comes_while_our_session_is_lost_ends_us_and_not_the_twin(world: World) -> None:
    registration, store = await world.registered()
    world.server.cut(store)
    await until(lambda: _is_gone(world, WRITABLE), "the session has ended on the server")
    await world.registered()
    world.server.mend(store)
    async with asyncio.timeout(10):
        error = await registration.wait_failed()
    assert isinstance(error, BookieRegisteredError)
    await registration.aclose()
    assert await world.modes() == ["w"], "the twin's"


async def _is_gone(world: World, path: str) -> bool:
    return await world.node(path) is None


async def test_a_node_deleted_by_somebody_else_is_made_again(world: World) -> None:
    registration, store = await world.registered()
    await world.client.delete(WRITABLE)
    await until(lambda: registration.registrations == 2, "made again")
    await registration.wait_registered()
    node = await world.node(WRITABLE)
    assert node is not None
    assert node.owner == store.session.id


# --- the cookie -------------------------------------------------------------------------------------------------------


async def test_a_bookie_without_a_cookie_in_the_metadata_does_not_register(world: World) -> None:
    await CookieStore(world.client, PATHS).delete(ID, ANY_VERSION)
    registration = world.bookie(world.server.connect())
    with pytest.raises(CookieMismatchError, match="declared dead"):
        await registration.start()
    assert await world.modes() == []


async def test_a_bookie_whose_cookie_was_deleted_does_not_come_back_after_a_lost_session(world: World) -> None:
    registration, store = await world.registered()
    await CookieStore(world.client, PATHS).delete(ID, ANY_VERSION)
    await world.server.expire(store)
    async with asyncio.timeout(10):
        assert isinstance(await registration.wait_failed(), CookieMismatchError)
    assert await world.modes() == []
