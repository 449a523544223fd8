"""Auto-recovery in a process that ends, as by kill -9, when it would write the metadata of a ledger.

    python workloads/doomed_worker.py zk://HOST:PORT [SECTION.KEY=VALUE ...]

Purpose:   a worker that is killed after its copies are durable, and before the metadata names them. No signal from
           outside meets this moment.
End:       the exit code DOOMED says that the process ended there. The line `ready` says that it takes part.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Final

from magnetar.autorecovery.service import AutoRecovery
from magnetar.config.load import Assignment, load
from magnetar.config.root import Config
from magnetar.metadata.bookkeeper.ledgers import LedgerMetadataStore
from magnetar.metadata.open import open_store
from magnetar.runtime.event_loop import run
from magnetar.runtime.logs import setup_logging
from magnetar.runtime.system import SystemRuntime

DOOMED: Final = 77


async def _die(*_arguments: Any) -> Any:
    os._exit(DOOMED)


async def work(config: Config) -> None:
    setattr(LedgerMetadataStore, "update", _die)  # noqa: B010
    runtime = SystemRuntime()
    async with await open_store(config, runtime) as store:
        recovery = AutoRecovery(store, config, runtime, name="doomed")
        recovery.start()
        print("ready", flush=True)
        raise await recovery.wait_failed()


def main() -> None:
    url, *settings = sys.argv[1:]
    setup_logging("INFO", "json", sys.stderr)
    given = [Assignment("metadata.url", url, "the first argument"), *map(Assignment.parse, settings)]
    config = load(flags=given).config
    run(lambda: work(config))


if __name__ == "__main__":
    main()
