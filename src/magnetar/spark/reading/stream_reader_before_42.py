"""What Spark calls for a streaming query before PySpark 4.2: it asks how far the topic is, not saying where it is.

So the reader remembers what it said last. After a restart it knows nothing: the first batch then has no limit.
"""

from __future__ import annotations

from typing import Any

from magnetar.spark.reading.shares import Limit
from magnetar.spark.reading.spots import to_json
from magnetar.spark.reading.stream_base import StreamReaderBase


class StreamReaderBefore42(StreamReaderBase):
    _said: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        self._said = super().initialOffset()
        return self._said

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802 - the shape of these releases
        options = self._rows.options
        limit = (
            Limit() if self._said is None else Limit(options.messages_per_trigger_max, options.bytes_per_trigger_max)
        )
        self._said = self._latest(to_json({}) if self._said is None else self._said, limit)
        return self._said
