"""The reader that Spark calls for a streaming query before PySpark 4.2, which asks for the end without the place.

Order:     so the reader remembers its place: its last answer, and the batches that Spark makes. The latter show it
           after a restart, too, unless the query is to end at the present end: then the end is asked for first.
Limits:    none for the first answer, as a query that ends at the present end asks only for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql.datasource import InputPartition

from magnetar.errors import MagnetarError
from magnetar.spark.reading.following import Follower, Limit
from magnetar.spark.reading.stream_base import StreamReaderBase
from magnetar.spark.reading.stream_offsets import Offset, to_json


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
        """Begins a query that seems to be new. If it is, Spark asks for its initial offset, and gets its errors; if it
        is not, they do not concern it."""

        async def work(follower: Follower) -> Offset:
            try:
                return Offset(await follower.begin())
            except MagnetarError:
                return Offset({})

        return to_json(self._ask(work))
