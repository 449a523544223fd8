"""Whatever step fails or is the last one: the next owner finds what was reported as durable, and nothing else.

The same short life of a cursor is lived again and again, each time with another step going wrong in another way. Then a
new owner opens the topic and must find every acknowledgement that a flush had confirmed, and none that was never given.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from magnetar.config.topic import CursorConfig
from magnetar.errors import CursorFencedError, MagnetarError
from magnetar.topic.cursor.cursors import Cursor, Cursors
from magnetar.topic.position import EARLIEST, Position
from tests.unit.topic.cursor_world import CursorWorld, Fate, Steps, acked_positions, run_of
from tests.virtual_time import run

pytestmark = pytest.mark.virtual_time

FatePlan = Callable[[int, str], Fate | None]

SHORT = CursorConfig(ledger_entries_max=3, store_timeout_ms=30_000)
LONG_STATES = CursorConfig(ledger_entries_max=3, store_timeout_ms=30_000, ranges_in_metadata_max=2)


class Life:
    """What happened to the cursor, as it was reported to its owner."""

    def __init__(self, config: CursorConfig) -> None:
        self.world = CursorWorld(10, 10, 10, config=config)
        self.steps = Steps()
        self.given: frozenset[Position] = frozenset()
        self.durable: frozenset[Position] = frozenset()
        self.mark_delete = Position(1, -1)
        self.properties: list[dict[str, str]] = [{}]
        """The last ones that were reported as durable, and those that may have become so since."""

    async def live(self) -> None:
        cursors = await self.world.open(self.steps)
        cursor = await cursors.create("sub", EARLIEST)
        for _ in range(2):
            await self._some_acknowledgements(cursor)
        await self._set_properties(cursor, {"a": "b"})
        await self._some_acknowledgements(cursor)
        await self._close(cursors, cursor)
        cursors = await self.world.open(self.steps)
        again = cursors.get("sub")
        assert again is not None
        found = acked_positions(self.world.chain, again)
        assert self.durable <= found <= self.given
        self.given = found  # What was not durable may be lost when the cursor was closed.
        await self._acknowledge(again, run_of(3, [8, 9]))
        await self._close(cursors, again)

    async def _some_acknowledgements(self, cursor: Cursor) -> None:
        first = cursor.mark_delete.entry_id + 1
        await self._acknowledge(cursor, run_of(1, [first]))
        await self._acknowledge(cursor, run_of(2, [first, first + 4]))
        await self._acknowledge(cursor, run_of(1, [first + 1]) + run_of(3, [first]))

    async def _acknowledge(self, cursor: Cursor, positions: list[Position]) -> None:
        cursor.acknowledge(positions)
        self.given |= frozenset(positions)
        try:
            await cursor.flush()
        except MagnetarError:
            return
        self._all_durable(cursor)

    async def _set_properties(self, cursor: Cursor, properties: dict[str, str]) -> None:
        self.properties.append(properties)
        try:
            await cursor.set_properties(properties)
        except MagnetarError:
            return
        self.properties = [properties]

    async def _close(self, cursors: Cursors, cursor: Cursor) -> None:
        try:
            await cursors.aclose()
        except MagnetarError:
            return
        self._all_durable(cursor)

    def _all_durable(self, cursor: Cursor) -> None:
        self.durable = self.given
        assert cursor.stored_mark_delete >= self.mark_delete
        self.mark_delete = cursor.stored_mark_delete


async def lived(config: CursorConfig, fate: FatePlan) -> Life:
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # Tasks of a killed owner end as they like.
    life = Life(config)
    await life.world.start()
    life.steps.fate = fate
    living = asyncio.ensure_future(life.live())
    killed = asyncio.ensure_future(life.steps.killed.wait())
    await asyncio.wait([living, killed], return_when=asyncio.FIRST_COMPLETED)
    if living.done() and living.exception() is not None:
        assert isinstance(living.exception(), MagnetarError)  # The cursor could not even be made, or opened again.
        assert not isinstance(living.exception(), CursorFencedError)
    return life


async def check_next_owner(life: Life) -> None:
    world = life.world
    assert not world.fenced
    cursors = await world.open()
    cursor = cursors.get("sub")
    if cursor is None:
        assert not life.given  # It was killed before the cursor was made.
        return
    found = acked_positions(world.chain, cursor)
    assert life.durable <= found <= life.given
    assert cursor.mark_delete >= life.mark_delete
    assert cursor.properties in life.properties
    cursor.acknowledge(run_of(1, range(10)))
    await cursor.flush()
    await cursors.aclose()
    await check_one_more(life, found | frozenset(run_of(1, range(10))))


async def check_one_more(life: Life, expected: frozenset[Position]) -> None:
    """Opens it for another owner, to see that the first take-over has left no trace."""
    cursor = (await life.world.open()).get("sub")
    assert cursor is not None
    assert acked_positions(life.world.chain, cursor) == expected


async def check(config: CursorConfig, fate: FatePlan) -> Life:
    life = await lived(config, fate)
    await check_next_owner(life)
    return life


def once(step: int, fate: Fate) -> FatePlan:
    return lambda number, _name: fate if number == step else None


def for_a_while(step: int, fate: Fate, part: str) -> FatePlan:
    """Lasts until a caller that tries again gives up."""
    return lambda number, name: fate if step <= number < step + 20 and name.startswith(part) else None


def steps_of(config: CursorConfig) -> int:
    life = run(check(config, lambda _number, _name: None))
    assert life.durable == life.given
    return len(life.steps.names)


def every_step(config: CursorConfig) -> Iterator[int]:
    yield from range(steps_of(config))


@pytest.mark.parametrize("config", [SHORT, LONG_STATES], ids=["short states", "long states"])
@pytest.mark.parametrize("fate", list(Fate), ids=lambda fate: fate.value)
def test_no_acknowledgement_is_lost_when_one_step_goes_wrong(config: CursorConfig, fate: Fate) -> None:
    for step in every_step(config):
        run(check(config, once(step, fate)))


@pytest.mark.parametrize("part", ["ledger", "store", ""], ids=["bookies", "metadata", "both"])
@pytest.mark.parametrize("fate", [Fate.REFUSED, Fate.REQUEST_LOST, Fate.ANSWER_LOST], ids=lambda fate: fate.value)
def test_no_acknowledgement_is_lost_when_something_is_away_for_a_while(fate: Fate, part: str) -> None:
    for step in range(0, steps_of(SHORT), 3):
        run(check(SHORT, for_a_while(step, fate, part)))


async def test_a_life_without_faults_leaves_one_node_and_no_ledger() -> None:
    life = await lived(SHORT, lambda _number, _name: None)
    assert life.world.ledgers.all == {}
    assert (await life.world.node()).cursors_ledger_id == -1


async def test_a_long_state_stays_in_its_ledger_when_the_cursor_is_closed() -> None:
    life = await lived(LONG_STATES, lambda _number, _name: None)
    node = await life.world.node()
    assert list(life.world.ledgers.all) == [node.cursors_ledger_id]
    assert life.world.ledgers.all[node.cursors_ledger_id].is_over
