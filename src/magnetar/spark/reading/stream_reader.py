"""The reader that Spark calls for a streaming query, from PySpark 4.2 on: it gets its place and its limit."""

from __future__ import annotations

from typing import Any

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from magnetar.spark.reading.following import Follower, Limit
from magnetar.spark.reading.stream_base import StreamReaderBase
from magnetar.spark.reading.stream_offsets import Offset, to_json


class StreamReader(StreamReaderBase, SupportsTriggerAvailableNow):
    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Returns one limit, as there is room for one; if both options are given, `latestOffset` adds the other."""
        options = self._rows.options
        if options.messages_per_trigger_max is not None:
            return ReadMaxRows(options.messages_per_trigger_max)
        if options.bytes_per_trigger_max is not None:
            return ReadMaxBytes(options.bytes_per_trigger_max)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return self._latest(start, self._limit(limit))

    def _limit(self, limit: ReadLimit) -> Limit:
        options = self._rows.options
        messages, size_bytes = options.messages_per_trigger_max, options.bytes_per_trigger_max
        if isinstance(limit, ReadMaxRows):
            return Limit(limit.max_rows, size_bytes)
        if isinstance(limit, ReadMaxBytes):
            return Limit(messages, limit.max_bytes)
        return Limit()  # Spark wants everything, whatever the options say.

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        async def work(follower: Follower) -> Offset | None:
            return follower.known()

        known = self._ask(work)
        return None if known is None else to_json(known)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        async def work(follower: Follower) -> None:
            await follower.available_now()

        self._ask(work)
