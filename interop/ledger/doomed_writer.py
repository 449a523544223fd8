"""`python -m interop.ledger.doomed_writer ZOOKEEPER E/QW/QA…`: writes to a ledger for each until it is killed.

Says what was acknowledged as doomed.py has it.
"""

from __future__ import annotations

import asyncio
import sys

import uvloop

from interop.bookie.client import Quorum
from interop.ledger.doomed import IN_FLIGHT
from interop.ledger.ours import create, our_client, write
from magnetar.ledger.client import LedgerClient

_ENDLESS = 2**40


async def main(zookeeper: str, quorums: list[Quorum]) -> None:
    async with our_client(zookeeper) as client:
        await asyncio.gather(*(_write(client, quorum) for quorum in quorums))


async def _write(client: LedgerClient, quorum: Quorum) -> None:
    writer = await create(client, quorum)

    def say(entry_id: int) -> None:
        print(writer.ledger_id, entry_id, flush=True)

    say(-1)
    await write(writer, _ENDLESS, in_flight=IN_FLIGHT, on_added=say)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    uvloop.run(main(sys.argv[1], [Quorum(*map(int, sizes.split("/"))) for sizes in sys.argv[2:]]))
