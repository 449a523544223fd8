from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from magnetar.errors import LedgerRecoveryError, WrongPasswordError
from magnetar.ids import EntryId
from magnetar.ledger.metadata import ledger_keys
from magnetar.ledger.recovery.reads import RecoveryReads
from magnetar.ledger.recovery.recovery import RecoveryProgress, recover
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.digests import DigestType, master_key
from tests.unit.ledger.worlds import QUICK, World, client_context, ledger_world, length_up_to

pytestmark = pytest.mark.virtual_time

IMPATIENT = dataclasses.replace(QUICK, recovery_timeout_ms=2_500)
"""For recoveries that cannot succeed."""


def assert_closed_at(metadata: LedgerMetadata, last: int) -> None:
    assert metadata.state is LedgerState.CLOSED
    assert metadata.last_entry_id == last
    assert metadata.length == (length_up_to(last) if last >= 0 else 0)


async def fill(world: World, count: int) -> None:
    for entry_id in range(count):
        await world.put(entry_id)


# --- where a ledger ends ----------------------------------------------------------------------------------------------


async def test_ledger_without_entries_is_closed_as_empty() -> None:
    async with ledger_world(3) as world:
        await world.create(E=3, Qw=3, Qa=2)
        assert_closed_at(await world.recover(), -1)


async def test_entries_on_all_bookies_are_kept() -> None:
    async with ledger_world(3) as world:
        await world.create(E=3, Qw=3, Qa=2)
        await fill(world, 5)
        closed = await world.recover()
        assert_closed_at(closed, 4)
        assert closed.fragments == world.stored.value.fragments


@pytest.mark.parametrize("holder", [0, 1, 2])
async def test_entry_that_one_bookie_has_and_another_cannot_deny_is_kept(holder: int) -> None:
    async with ledger_world(4) as world:
        await world.create(E=3, Qw=3, Qa=2)
        await fill(world, 3)
        await world.put(3, on=[holder])
        await world.cluster.kill((holder + 1) % 3)  # Only one "no" is left, and two are needed.
        closed = await world.recover()
        assert_closed_at(closed, 3)
        assert await world.copies(closed, 3) >= 2


async def test_entry_that_enough_bookies_deny_ends_the_ledger() -> None:
    async with ledger_world(3) as world:
        await world.create(E=3, Qw=3, Qa=2)
        await fill(world, 3)
        await world.cluster.kill(2)
        assert_closed_at(await world.recover(), 2)


async def test_nothing_behind_a_missing_entry_counts() -> None:
    async with ledger_world(3) as world:
        await world.create(E=3, Qw=3, Qa=2)
        await fill(world, 3)
        for entry_id in (4, 5, 6):
            await world.put(entry_id, lac=2)
        assert_closed_at(await world.recover(), 2)


async def test_long_tail_behind_the_lac_is_recovered_in_order() -> None:
    async with ledger_world(3) as world:
        await world.create(E=3, Qw=3, Qa=2)
        for entry_id in range(200):
            await world.put(entry_id, on=[entry_id % 3, (entry_id + 1) % 3], lac=9 if entry_id > 9 else -1)
        closed = await world.recover()
        assert_closed_at(closed, 199)
        for entry_id in range(10, 200):
            assert await world.copies(closed, entry_id) >= 2


async def test_large_entries_are_read_few_at_a_time() -> None:
    config = dataclasses.replace(QUICK, add_bytes_in_flight_max=100)  # Three copies of one entry of the test.
    async with ledger_world(3, config) as world:
        await world.create(E=3, Qw=3, Qa=2)
        for entry_id in range(20):
            await world.put(entry_id, lac=-1)
        until = asyncio.get_running_loop().time() + 10
        reads = RecoveryReads(world.stored.value, EntryId(0), world.keys, world.context, until)
        found = 0
        while await reads.next() is not None:
            found += 1
            assert len(reads._reading) <= 2
        await reads.aclose()
        assert found == 20
        assert_closed_at(await world.recover(), 19)


async def test_lac_of_one_bookie_is_enough_to_skip_what_is_committed() -> None:
    seen: list[RecoveryProgress] = []
    async with ledger_world(3) as world:
        await world.create(E=3, Qw=3, Qa=2)
        await fill(world, 5)
        assert_closed_at(await world.recover(on_progress=seen.append), 4)
    assert seen[0].entry_id == 3  # Entry 4 carries LAC 3.
    assert (seen[-1].entry_id, seen[-1].entries_found, seen[-1].entries_confirmed) == (4, 1, 1)


# --- who may be gone --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(2, 2, 1), (2, 2, 2), (3, 3, 2), (3, 3, 3), (4, 3, 2), (5, 3, 3), (5, 4, 2)])
async def test_ledger_can_be_closed_with_all_but_one_of_an_ack_quorum_gone(sizes: tuple[int, int, int]) -> None:
    E, Qw, Qa = sizes  # noqa: N806
    async with ledger_world(E + Qa - 1) as world:
        await world.create(E=E, Qw=Qw, Qa=Qa)
        for entry_id in range(12):
            await world.put(entry_id, lac=min(entry_id - 1, 5))
        for number in range(Qa - 1):
            await world.cluster.kill(number)
        closed = await world.recover()
        assert_closed_at(closed, 11)
        for entry_id in range(6, 12):  # What was written back; the others are for auto-recovery.
            assert await world.copies(closed, entry_id) >= Qa
        assert all(len(set(fragment.ensemble)) == E for fragment in closed.fragments)


# --- striping ---------------------------------------------------------------------------------------------------------


async def test_striped_ledger_is_recovered_with_a_bookie_gone() -> None:
    async with ledger_world(5) as world:
        await world.create(E=4, Qw=3, Qa=2)
        await fill(world, 9)
        await world.put(9, on=[1])
        await world.cluster.kill(2)
        closed = await world.recover()
        assert closed.state is LedgerState.CLOSED
        assert closed.last_entry_id in (8, 9)
        for entry_id in range(closed.last_entry_id + 1):
            assert await world.copies(closed, entry_id) >= 2


async def test_striped_entry_is_looked_for_only_in_its_write_set() -> None:
    async with ledger_world(4) as world:
        await world.create(E=4, Qw=2, Qa=2)
        await fill(world, 6)
        await world.put_at(world.ensemble[0], 6, lac=5)  # Write set of 6 is positions 2 and 3: it does not count.
        assert_closed_at(await world.recover(), 5)


# --- fragments --------------------------------------------------------------------------------------------------------


async def test_recovery_begins_at_the_last_fragment_whatever_the_lac() -> None:
    """Nothing of the older fragment is read again, though no bookie of the last one knows a LAC."""
    seen: list[RecoveryProgress] = []
    async with ledger_world(6) as world:
        await world.create(E=3, Qw=3, Qa=2, fragments={0: [3, 4, 5], 10: [0, 1, 2]})
        await fill(world, 10)
        closed = await world.recover(on_progress=seen.append)
        assert_closed_at(closed, 9)
        assert seen[0].entry_id == 9
        assert closed.fragments == world.stored.value.fragments


async def test_older_fragment_stays_as_it_is_when_entries_are_written_back() -> None:
    async with ledger_world(7) as world:
        await world.create(E=3, Qw=3, Qa=3, fragments={0: [3, 4, 5], 10: [0, 1, 2]})
        await fill(world, 10)
        await world.put(10, lac=4)  # An old LAC: the writer was far ahead.
        await world.cluster.kill(2)
        closed = await world.recover()
        assert_closed_at(closed, 10)
        assert closed.fragments[0] == world.stored.value.fragments[0]
        assert [fragment.first_entry_id for fragment in closed.fragments] == [0, 10]  # Replaced in place.
        assert world.cluster.bookie_ids[2] not in closed.fragments[1].ensemble
        assert await world.copies(closed, 10) == 3


async def test_bookie_replaced_during_recovery_is_in_a_new_fragment_of_the_closed_ledger() -> None:
    async with ledger_world(4) as world:
        await world.create(E=3, Qw=3, Qa=3)
        await fill(world, 5)
        await world.cluster.kill(2)
        closed = await world.recover()
        assert_closed_at(closed, 4)
        gone, fresh = world.cluster.bookie_ids[2:]
        assert [fragment.first_entry_id for fragment in closed.fragments] == [0, 4]
        assert closed.fragments[0] == world.stored.value.fragments[0]
        assert closed.fragments[1].ensemble == (*world.ensemble[:2], fresh)
        assert gone not in closed.fragments[1].ensemble
        assert await world.copies(closed, 4) == 3


async def test_replacement_is_not_in_the_metadata_before_the_ledger_is_closed() -> None:
    async with ledger_world(4) as world:
        await world.create(E=3, Qw=3, Qa=3)
        await fill(world, 5)
        await world.cluster.kill(2)
        await world.recover()
        assert (await world.metadata()).version == 2  # Marked, closed, and nothing between.


# --- what cannot be decided -------------------------------------------------------------------------------------------


async def test_two_bookies_gone_is_an_error_and_the_ledger_is_not_closed() -> None:
    async with ledger_world(5, IMPATIENT) as world:
        await world.create(E=3, Qw=3, Qa=2)
        await fill(world, 3)
        await world.cluster.kill(0)
        await world.cluster.kill(1)
        with pytest.raises(LedgerRecoveryError, match="try again when these bookies are back") as caught:
            await world.recover()
        assert caught.value.retryable
        assert world.ensemble[0] in str(caught.value)
        stored = await world.metadata()
        assert stored.value == dataclasses.replace(world.stored.value, state=LedgerState.IN_RECOVERY)
        assert stored.version == 1
        await world.cluster.node(0).start()
        assert_closed_at(await world.recover(), 2)


async def test_time_out_is_not_a_no() -> None:
    async with ledger_world(4, IMPATIENT) as world:
        await world.create(E=3, Qw=3, Qa=2)
        await fill(world, 2)
        await world.put(2, on=[0, 1], lac=1)  # Acknowledged.
        world.cluster.hang(0)
        world.cluster.hang(1)
        with pytest.raises(LedgerRecoveryError):
            await world.recover()
        assert not (await world.metadata()).value.is_closed
        world.cluster.wake(0)
        assert_closed_at(await world.recover(), 2)


async def test_bookie_in_limbo_is_not_a_no() -> None:
    """Entry 3 was acknowledged by bookies 1 and 2. Bookie 2 has lost it, and knows that it may have lost something."""
    async with ledger_world(4, IMPATIENT) as world:
        await world.create(E=3, Qw=3, Qa=2)
        await fill(world, 3)
        await world.put(3, on=[1], lac=2)
        await put_in_limbo(world, 2)
        await world.cluster.kill(1)
        with pytest.raises(LedgerRecoveryError, match="may have lost entries"):
            await world.recover()
        assert not (await world.metadata()).value.is_closed
        await world.cluster.node(1).start()
        assert_closed_at(await world.recover(), 3)


async def put_in_limbo(world: World, number: int) -> None:
    table = world.cluster.node(number).running._requests._table
    ledger = await table.load(world.keys.ledger_id)
    table.change(ledger, dataclasses.replace(ledger.flags, limbo=True))


async def test_recovery_that_takes_too_long_says_so_and_closes_nothing() -> None:
    async with ledger_world(3) as world:
        await world.create(E=3, Qw=3, Qa=2)
        await fill(world, 2)
        config = dataclasses.replace(world.context.config, recovery_timeout_ms=50, read_timeout_ms=60_000)
        for number in range(3):
            world.cluster.hang(number)
        with pytest.raises(LedgerRecoveryError, match="recovery_timeout_ms"):
            await world.recover(context=world.context._replace(config=config))
        assert (await world.metadata()).value.state is LedgerState.IN_RECOVERY


async def test_entry_that_cannot_be_written_back_to_enough_bookies_ends_the_recovery_without_a_close() -> None:
    async with ledger_world(3, dataclasses.replace(QUICK, recovery_timeout_ms=1_000)) as world:
        await world.create(E=3, Qw=3, Qa=3)
        await fill(world, 2)
        await world.cluster.kill(2)
        with pytest.raises(LedgerRecoveryError):
            await world.recover()
        stored = await world.metadata()
        assert stored.value == dataclasses.replace(world.stored.value, state=LedgerState.IN_RECOVERY)
        await world.cluster.add_bookie()
        assert_closed_at(await world.recover(), 1)


# --- the old writer ---------------------------------------------------------------------------------------------------


async def test_old_writer_is_fenced_on_every_bookie_that_answers() -> None:
    async with ledger_world(3) as world:
        await world.create(E=3, Qw=3, Qa=2)
        await fill(world, 3)
        await world.recover()
        assert (await world.put(3)).count(Code.EFENCED) >= 2


async def test_wrong_password_is_told_before_any_bookie_is_asked() -> None:
    async with ledger_world(3) as world:
        await world.create(E=3, Qw=3, Qa=2)
        with pytest.raises(WrongPasswordError, match="another password"):
            ledger_keys(world.stored.value, b"wrong", DigestType.CRC32C)


async def test_wrong_key_at_a_bookie_ends_the_recovery_and_closes_nothing() -> None:
    async with ledger_world(3) as world:
        await world.create(E=3, Qw=3, Qa=2)
        await fill(world, 3)
        wrong = dataclasses.replace(world.keys, master_key=master_key(b"wrong"))
        with pytest.raises(WrongPasswordError):
            await recover(world.stored, wrong, world.context)
        assert not (await world.metadata()).value.is_closed
        assert_closed_at(await world.recover(), 2)


# --- again, and side by side ------------------------------------------------------------------------------------------


async def test_recovery_of_a_closed_ledger_changes_nothing() -> None:
    async with ledger_world(3) as world:
        await world.create(E=3, Qw=3, Qa=2)
        await fill(world, 3)
        await world.recover()
        before = await world.metadata()
        assert_closed_at(await world.recover(), 2)
        assert await world.metadata() == before


async def test_racing_recoveries_agree() -> None:
    async with ledger_world(4) as world:
        await world.create(E=3, Qw=3, Qa=2)
        await fill(world, 3)
        await world.put(3, on=[0])
        await world.put(4, on=[2], lac=2)
        async with client_context(world.cluster) as second, client_context(world.cluster) as third:
            ends = await asyncio.gather(*(world.recover(context=context) for context in (world.context, second, third)))
        assert ends[0] == ends[1] == ends[2] == (await world.metadata()).value
        assert ends[0].last_entry_id in (2, 3, 4)
        for entry_id in range(ends[0].last_entry_id + 1):
            assert await world.copies(ends[0], entry_id) >= 2


async def test_racing_recoveries_of_one_process_agree() -> None:
    async with ledger_world(3) as world:
        await world.create(E=3, Qw=3, Qa=2)
        await fill(world, 3)
        for entry_id in range(3, 40):
            await world.put(entry_id, on=[entry_id % 3, (entry_id + 1) % 3], lac=2)
        ends = await asyncio.gather(*(world.recover() for _ in range(3)))
        assert ends[0] == ends[1] == ends[2]
        assert_closed_at(ends[0], 39)


async def test_recovery_that_was_interrupted_anywhere_is_finished_by_the_next() -> None:
    for steps in (1, 3, 10, 30, 100):
        async with ledger_world(3) as world:
            await world.create(E=3, Qw=3, Qa=2)
            await fill(world, 3)
            for entry_id in range(3, 12):
                await world.put(entry_id, on=[0, 1], lac=2)
            first = asyncio.ensure_future(world.recover())
            for _ in range(steps):
                await asyncio.sleep(0)
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            assert_closed_at(await world.recover(), 11)


async def test_entries_written_back_carry_the_lac_with_which_recovery_began() -> None:
    """Else a recovery after a broken one would take for committed what is only on bookies that no metadata names."""
    async with ledger_world(3) as world:
        await world.create(E=3, Qw=3, Qa=2)
        await fill(world, 3)
        for entry_id in range(3, 30):
            await world.put(entry_id, on=[0, 1], lac=2)
        await world.recover()
        for entry_id in range(3, 30):
            for bookie in world.ensemble:
                if await world.has(bookie, entry_id):
                    assert await world.lac_at(bookie, entry_id) <= 2


async def test_bookie_swapped_in_an_older_fragment_meanwhile_stays_swapped() -> None:
    async with ledger_world(7) as world:
        await world.create(E=3, Qw=3, Qa=2, fragments={0: [3, 4, 5], 10: [0, 1, 2]})
        await fill(world, 11)

        async def swap() -> None:
            stored = await world.metadata()
            first, last = stored.value.fragments
            other = dataclasses.replace(first, ensemble=(world.cluster.bookie_ids[6], *first.ensemble[1:]))
            await world.context.ledgers.update(
                dataclasses.replace(stored.value, fragments=(other, last)), stored.version
            )

        closed = await world.recover(on_progress=once(swap))
        assert_closed_at(closed, 10)
        assert closed.fragments[0].ensemble[0] == world.cluster.bookie_ids[6]


async def test_loser_of_the_close_takes_what_is_there() -> None:
    """Another recovery heard two bookies deny entry 3 before this one found it on the third: both may be true."""
    async with ledger_world(3) as world:
        await world.create(E=3, Qw=3, Qa=2)
        await fill(world, 4)
        closed = await world.recover(on_progress=once(world.close, 2))
        assert_closed_at(closed, 2)
        assert closed == (await world.metadata()).value
        assert (await world.metadata()).version == 2


async def test_recovery_begins_again_when_the_last_fragment_is_another() -> None:
    async with ledger_world(4) as world:
        await world.create(E=3, Qw=3, Qa=2)
        await fill(world, 4)

        async def swap() -> None:
            stored = await world.metadata()
            (last,) = stored.value.fragments
            other = dataclasses.replace(last, ensemble=(*last.ensemble[:2], world.cluster.bookie_ids[3]))
            await world.context.ledgers.update(dataclasses.replace(stored.value, fragments=(other,)), stored.version)

        closed = await world.recover(on_progress=once(swap))
        assert_closed_at(closed, 3)
        assert closed.fragments[0].ensemble[2] == world.cluster.bookie_ids[3]


def once(work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> Callable[[RecoveryProgress], None]:
    """Does this when recovery has fenced the bookies, long before it can close the ledger."""
    tasks: list[asyncio.Task[None]] = []

    def on_progress(_step: RecoveryProgress) -> None:
        if not tasks:
            tasks.append(asyncio.get_running_loop().create_task(work(*arguments)))

    return on_progress
