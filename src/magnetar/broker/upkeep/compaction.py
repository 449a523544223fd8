"""Compaction runs of one topic: begun by an operator or by the size of the uncompacted part, one at a time.

Read next: topic/compaction.py (what a run does)
"""

from __future__ import annotations

import asyncio
import enum
import logging

from magnetar.errors import CompactionError, MagnetarError
from magnetar.topic.chain import LedgerChain
from magnetar.topic.compaction import COMPACTION_CURSOR, CompactionResult, TopicCompaction
from magnetar.topic.cursor.cursors import Cursor, Cursors
from magnetar.topic.position import EARLIEST

log = logging.getLogger(__name__)


class CompactionStatus(enum.StrEnum):
    """Lists the values of the admin interface."""

    NOT_RUN = "NOT_RUN"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    ERROR = "ERROR"


class CompactionRuns:
    def __init__(self, view: TopicCompaction, cursors: Cursors) -> None:
        self.view = view
        """Reads like the topic's log, with the compacted messages in place of the originals."""
        self.status = CompactionStatus.NOT_RUN
        """The status of the last run since the topic was loaded."""
        self.last_error = ""
        self.last_result: CompactionResult | None = None
        self.last_duration_s = 0.0
        self.succeeded_s: float | None = None
        """When a run last succeeded since the topic was loaded, in the loop's time; likewise:"""
        self.failed_s: float | None = None
        self._cursors = cursors
        self._task: asyncio.Task[None] | None = None

    async def restore(self) -> None:
        cursor = self._cursors.get(COMPACTION_CURSOR)
        if cursor is not None:
            await self.view.restore(cursor)

    def uncompacted_bytes(self, chain: LedgerChain) -> int:
        cursor = self._cursors.get(COMPACTION_CURSOR)
        return chain.bytes_between(EARLIEST if cursor is None else cursor.mark_delete, chain.last_confirmed)

    def begin(self) -> None:
        """Runs in the background; `status` has its state. Raises CompactionError if a run is in progress."""
        if self._task is not None:
            raise CompactionError("the topic is being compacted already: wait for that run to end")
        self.status = CompactionStatus.RUNNING
        self._task = asyncio.get_running_loop().create_task(self._run(), name="topic-compaction")

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            cursor = await self._cursor()
            self.last_result = await self.view.run(cursor)
            self.status, self.last_error = CompactionStatus.SUCCESS, ""
            self.succeeded_s, self.last_duration_s = loop.time(), loop.time() - began_s
        except MagnetarError as error:
            self.status, self.last_error = CompactionStatus.ERROR, str(error)
            self.failed_s = loop.time()
            log.warning("a topic was not compacted", extra={"why": str(error)})
        finally:
            self._task = None

    async def _cursor(self) -> Cursor:
        return self._cursors.get(COMPACTION_CURSOR) or await self._cursors.create(COMPACTION_CURSOR, EARLIEST)

    async def wait(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task])

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self.status = CompactionStatus.ERROR
