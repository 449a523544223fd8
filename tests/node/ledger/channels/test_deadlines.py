"""One timer for all requests of a channel."""

from __future__ import annotations

import asyncio

from magnetar.ledger.channels.pending_requests import NO_SLOT, SLOT_S, Deadlines
from magnetar.testing.waiting import until


class Item:
    def __init__(self, log: list[str], name: str) -> None:
        self.slot = NO_SLOT
        self._log = log
        self._name = name

    def on_expired(self) -> None:
        self._log.append(self._name)


async def test_items_expire_in_the_order_of_their_deadlines_and_not_before() -> None:
    loop = asyncio.get_running_loop()
    deadlines, log = Deadlines(loop), []
    begun = loop.time()
    for name, timeout_s in (("late", 6 * SLOT_S), ("early", 2 * SLOT_S), ("middle", 4 * SLOT_S)):
        deadlines.add(Item(log, name), timeout_s)
    await until(lambda: log, "the first one expires")
    assert loop.time() - begun >= 2 * SLOT_S
    await until(lambda: len(log) == 3, "all expire")
    assert loop.time() - begun >= 6 * SLOT_S
    assert log == ["early", "middle", "late"]


async def test_a_later_deadline_that_was_there_first_delays_nobody() -> None:
    deadlines, log = Deadlines(asyncio.get_running_loop()), []
    deadlines.add(Item(log, "late"), 1_000)
    deadlines.add(Item(log, "early"), SLOT_S)
    await until(lambda: log == ["early"], "the early one expires", seconds=5)
    deadlines.clear()


async def test_what_was_answered_does_not_expire_and_is_not_kept() -> None:
    deadlines, log = Deadlines(asyncio.get_running_loop()), []
    items = [Item(log, str(number)) for number in range(100)]
    for item in items:
        deadlines.add(item, 2 * SLOT_S)
    for item in items[1:]:
        deadlines.discard(item)
        deadlines.discard(item)  # Twice is as once.
    assert sum(map(len, deadlines._slots.values())) == 1
    await until(lambda: log, "the one that was not answered expires")
    assert log == ["0"]
    assert deadlines._timer is None
    assert not deadlines._slots


async def test_an_item_may_be_added_while_another_expires() -> None:
    deadlines, log = Deadlines(asyncio.get_running_loop()), []

    class Again(Item):
        def on_expired(self) -> None:
            super().on_expired()
            deadlines.add(Item(log, "second"), SLOT_S)

    deadlines.add(Again(log, "first"), SLOT_S)
    await until(lambda: len(log) == 2, "both expire")
    assert log == ["first", "second"]


async def test_nothing_expires_after_clear() -> None:
    deadlines, log = Deadlines(asyncio.get_running_loop()), []
    deadlines.add(Item(log, "cleared"), 0)
    deadlines.clear()
    deadlines.add(Item(log, "later"), 0)
    await until(lambda: log, "the later one expires")
    assert log == ["later"]
