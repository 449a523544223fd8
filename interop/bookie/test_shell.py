"""`bookkeeper shell`: what Apache's operators look at a cluster with."""

from __future__ import annotations

import re

from interop.bookie.client import E3_QW2_QA2, expect
from interop.bookie.conftest import Bookies


async def test_the_shell_lists_the_bookies(bookies: Bookies) -> None:
    listed = re.findall(r"bookieAddr=BookieID:([^,}]+)", bookies.shell("listbookies", "-rw"))
    expect("writable", sorted(listed), sorted(bookies.cluster.ids))
    listed = re.findall(r"bookieAddr=BookieID:([^,}]+)", bookies.shell("listbookies", "-ro"))
    expect("read-only", listed, [])


async def test_the_shell_finds_every_bookie_sane(bookies: Bookies) -> None:
    for bookie in bookies.cluster.ids:
        said = bookies.shell("bookiesanity", "-e", "100", "-t", "10", bookie_id=bookie)
        assert "sanity test succeeded" in said, said


async def test_the_shells_simple_test_writes_and_reads(bookies: Bookies) -> None:
    said = bookies.shell("simpletest", "-ensemble", "3", "-writeQuorum", "3", "-ackQuorum", "2", "-numEntries", "500")
    assert re.search(r"500 entries written to ledger \d+", said), said


async def test_the_shell_reads_a_ledger_as_a_whole_and_from_one_bookie(bookies: Bookies) -> None:
    client = await bookies.client("v3")
    ledger = await client.create(password="")
    await ledger.write(20)
    await ledger.close()
    await client.disconnect()
    ledger_words = ["readledger", "-ledgerid", str(ledger.id), "-firstentryid", "0", "-lastentryid", "19"]
    expect("entries", _entry_ids(bookies.shell(*ledger_words, "-msg")), list(range(20)))
    for bookie in bookies.cluster.ids:  # Asked for one bookie, the shell leaves the last entry out.
        expect(f"entries of {bookie}", _entry_ids(bookies.shell(*ledger_words, "-bookie", bookie)), list(range(19)))


def _entry_ids(said: str) -> list[int]:
    return [int(found) for found in re.findall(r"\bentryId=(\d+)", said)]


async def test_the_shell_recovers_a_ledger_left_open_and_reads_it(bookies: Bookies) -> None:
    client = await bookies.client("v3")
    ledger = await client.create(E3_QW2_QA2, password="")
    await ledger.write(20)
    await client.disconnect()
    said = bookies.shell("readledger", "-ledgerid", str(ledger.id), "-firstentryid", "0", "-force-recovery")
    expect("entries", _entry_ids(said), list(range(20)))
    assert "state=CLOSED" in bookies.shell("ledgermetadata", "-ledgerid", str(ledger.id))


async def test_the_shell_shows_the_metadata_of_a_ledger(bookies: Bookies) -> None:
    client = await bookies.client("v2")
    ledger = await client.create(E3_QW2_QA2)
    await ledger.write(7)
    await ledger.close()
    ensemble = (await (await client.open(ledger.id)).state())["ensembles"][0]
    await client.disconnect()
    said = bookies.shell("ledgermetadata", "-ledgerid", str(ledger.id))
    for expected in ("ensembleSize=3", "writeQuorumSize=2", "ackQuorumSize=2", "state=CLOSED", "lastEntryId=6"):
        assert expected in said, f"{expected} is missing: {said}"
    assert f"0=[{', '.join(ensemble)}]" in said, said
