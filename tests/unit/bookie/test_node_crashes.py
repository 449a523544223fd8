"""A whole bookie loses power again and again; nothing it has acknowledged is lost, and no sync of it could be left out.

Invariant: the places that sync are found twice: by running the stories, and in the text of the code. Each one found in
           the text must have been run, and taken out, it must make a story fail. So a sync that is added later cannot
           be forgotten here.
"""

from __future__ import annotations

import ast
import asyncio
import functools
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import magnetar
from magnetar.errors import MagnetarError
from magnetar.sim.device import SyncSites
from magnetar.storage.entry_log.writer import EntryLogWriter
from tests.unit.bookie.limbo_story import repairs
from tests.unit.bookie.node_story import (
    Ending,
    Story,
    damage_behind_a_restart,
    damage_behind_an_orderly_stop,
    power_loss_behind_a_start,
    rivals,
)
from tests.unit.bookie.sim_node import small_steps
from tests.unit.bookie.storage_story import flushes
from tests.virtual_time import run

SEEDS = range(16)
SEEDS_PER_SITE = range(40)
SOURCES = Path(magnetar.__file__).parent
ASKS_FOR_DURABILITY = ("sync", "sync_dir", "append_and_sync", "write_again")
METADATA = ("store", "self._store")  # Its `sync` is about what others have written, not about a disk.


# --- the stories ------------------------------------------------------------------------------------------------------

Tale = Callable[[int, SyncSites], Awaitable[Story | None]]


async def told(seed: int, sites: SyncSites, *endings: Ending, busy: bool) -> Story:
    story = Story(seed, sites, busy=busy)
    await story.run(*endings)
    return story


async def busy_lives(seed: int, sites: SyncSites) -> Story:
    return await told(seed, sites, busy=True)


async def quiet_lives(seed: int, sites: SyncSites) -> Story:
    endings = (damage_behind_an_orderly_stop, power_loss_behind_a_start, damage_behind_a_restart)
    return await told(seed, sites, endings[seed % len(endings)], busy=False)


TALES: tuple[Tale, ...] = (quiet_lives, busy_lives, rivals, repairs, flushes)


def tell(tale: Tale, seed: int, sites: SyncSites) -> Story | None:
    with small_steps() as patch:
        patch.setattr(EntryLogWriter, "sync", noted(sites))
        return run(tale(seed, sites), is_tolerant=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("tale", TALES, ids=lambda tale: tale.__name__)
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_that_a_bookie_has_promised_is_lost_by_any_crash(tale: Tale, seed: int) -> None:
    tell(tale, seed, SyncSites())


def test_the_stories_are_about_something() -> None:
    stories = [tell(tale, seed, SyncSites()) for tale in (busy_lives, quiet_lives) for seed in SEEDS[:6]]
    promises = [story.promises for story in stories if story is not None]
    assert sum(story.crashes for story in stories if story is not None) > 60
    assert sum(len(entries) for found in promises for entries in found.acknowledged.values()) > 300
    assert sum(len(found.fenced) for found in promises) > 10
    assert sum(len(found.limbo) for found in promises) > 3
    assert sum(story.logs_removed for story in stories if story is not None) > 10
    assert sum(story.evictions for story in stories if story is not None) > 20


def test_a_story_is_the_same_every_time() -> None:
    told_twice = [tell(busy_lives, 5, sites) for sites in (SyncSites(), SyncSites())]
    first, second = told_twice
    assert first is not None
    assert second is not None
    assert first.sites.counts == second.sites.counts
    assert first.promises.acknowledged == second.promises.acknowledged


# --- the places that sync ---------------------------------------------------------------------------------------------


def noted(sites: SyncSites) -> Callable[[EntryLogWriter], Awaitable[None]]:
    """`EntryLogWriter.sync` is a sync for those who call it: each of them is a place, too."""
    original = EntryLogWriter.sync

    def sync(writer: EntryLogWriter) -> Awaitable[None]:
        caller = sys._getframe(1)
        inside = Path(caller.f_code.co_filename).relative_to(SOURCES).as_posix()
        site = f"{inside}:{caller.f_lineno}:{caller.f_code.co_qualname}"
        sites.counts[site] = sites.counts.get(site, 0) + 1
        return asyncio.sleep(0) if site in sites.ignored else original(writer)

    return sync


class Place(NamedTuple):
    """A call in the text."""

    file: str
    first_line: int
    last_line: int

    def has(self, site: str) -> bool:
        file, line, _ = site.split(":", 2)
        return file == self.file and self.first_line <= int(line) <= self.last_line


def places_in_the_text() -> Iterator[Place]:
    for path in sorted([*SOURCES.glob("storage/**/*.py"), *SOURCES.glob("bookie/**/*.py")]):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr in ASKS_FOR_DURABILITY and ast.unparse(node.func.value) not in METADATA:
                yield Place(path.relative_to(SOURCES).as_posix(), node.lineno, node.end_lineno or node.lineno)


@functools.cache
def sites_of_the_stories() -> tuple[str, ...]:
    sites = SyncSites()
    for tale in TALES:
        for seed in SEEDS[:6]:
            tell(tale, seed, sites)
    return tuple(sorted(sites.counts))


def test_the_stories_run_every_sync_of_the_text_and_no_other() -> None:
    sites, places = sites_of_the_stories(), list(places_in_the_text())
    assert [place for place in places if not any(place.has(site) for site in sites)] == []
    assert [site for site in sites if not any(place.has(site) for place in places)] == []


@pytest.mark.parametrize("place", list(places_in_the_text()), ids=lambda place: f"{place.file}:{place.first_line}")
def test_without_this_sync_something_is_lost(place: Place) -> None:
    ignored = [site for site in sites_of_the_stories() if place.has(site)]
    assert ignored, "no story comes here"
    for seed in SEEDS_PER_SITE:
        for tale in TALES:
            sites = SyncSites()
            sites.ignored.update(ignored)
            try:
                tell(tale, seed, sites)
            except (MagnetarError, AssertionError, pytest.fail.Exception):
                return
    pytest.fail("the stories do not notice")
