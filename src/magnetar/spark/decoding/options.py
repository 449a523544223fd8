"""The options of a decoder. They do not change the columns: columns.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from magnetar.schemas.data import SchemaData
from magnetar.spark.decoding.runs import EntriesBefore

WriterSchema: TypeAlias = Callable[[str, bytes], SchemaData]
"""Returns the schema of a topic's version, from a message's metadata. Called once for each version; raises SchemaError
if it is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeOptions:
    encrypted: Literal["refuse", "raw"] = "refuse"
    """With "fail", an encrypted message is an error; otherwise its value is the encrypted bytes (one row for a
    batch)."""
    fail_on_data_loss: bool = True
    """Whether a chunked message with lost chunks is an error; otherwise it is skipped and counted. Chunks that
    retention removed are no loss."""
    entries_before: EntriesBefore | None = None
    """Finds the first chunks of a message whose last one is in this split. None: such a message is incomplete."""
    writer_schema: WriterSchema | None = None
    """Needed for typed columns alone. None: every message has the schema of the columns."""
    rows_max: int = 10_000
    """The limit of rows in a batch. Spark takes 1,000 rows a batch as fast as more."""
    bytes_max: int = 4 * 2**20
    """A batch is complete when its payloads have this many bytes; one large message may exceed it."""
    index_min: int | None = None
    """Messages with a lower index are left out."""
    index_end: int | None = None
    """Messages from this index on are left out."""
    publish_ms_min: int | None = None
    """Messages published earlier are left out."""
    publish_ms_end: int | None = None
    """Messages published at this time or later are left out."""
