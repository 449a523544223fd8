"""What Spark calls for a streaming query before PySpark 4.2: it asks how far the topic is, not saying where it is.

So the reader remembers where it is: what it said last, and what Spark makes batches of. The latter tells it after a
restart, too, unless the query is to end with what is there: then it is asked before it is told anything.
Limits:    none for what it is asked first, as that is all that a query which ends with what is there asks for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql.datasource import InputPartition

from magnetar.errors import MagnetarError
from magnetar.spark.reading.following import Follower
from magnetar.spark.reading.shares import Limit
from magnetar.spark.reading.spots import Offset, to_json
from magnetar.spark.reading.stream_base import StreamReaderBase


class StreamReaderBefore42(StreamReaderBase):
    _at: dict[str, Any] | None = None
    _has_said = False

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._at = end
        return super().partitions(start, end)

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802 - the shape of these releases
        options = self._rows.options
        limit = Limit(options.messages_per_trigger_max, options.bytes_per_trigger_max) if self._has_said else Limit()
        self._at = self._latest(self._begin() if self._at is None else self._at, limit)
        self._has_said = True
        return self._at

    def _begin(self) -> dict[str, Any]:
        """Of a query that seems to be new. If it is, Spark asks for its initial offset, and is told what is wrong with
        that; if it is not, nothing of that is its concern."""

        async def work(follower: Follower) -> Offset:
            try:
                return Offset(await follower.begin())
            except MagnetarError:
                return Offset({})

        return to_json(self._ask(work))
