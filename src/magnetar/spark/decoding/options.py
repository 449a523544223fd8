"""What a reader may ask of the decoder. None of it changes which columns come out: columns.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from magnetar.broker.schemas.data import SchemaData
from magnetar.spark.decoding.runs import EntriesBefore

WriterSchema: TypeAlias = Callable[[str, bytes], SchemaData]
"""Given topic and the version that stands in a message's metadata: the schema it was written with. Called once for each
version; raises SchemaError if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeOptions:
    encrypted: Literal["refuse", "raw"] = "refuse"
    """An encrypted message is an error, or its value is what the producer encrypted (a batch is then one row)."""
    fail_on_data_loss: bool = True
    """A chunked message of which chunks are lost is an error; else it is skipped and counted. Chunks that retention
    took are no loss."""
    entries_before: EntriesBefore | None = None
    """For the first chunks of a message whose last one is in this split. None: such a message is incomplete."""
    writer_schema: WriterSchema | None = None
    """Needed for typed columns alone. None: every message is taken to be of the schema that the columns are of."""
    rows_max: int = 10_000
    """A batch has no more rows. Spark takes 1,000 rows a batch as fast as more."""
    bytes_max: int = 4 * 2**20
    """A batch is handed out when its payloads have this many bytes; one large message may exceed it."""
    index_min: int | None = None
    """Messages with a lower index are left out."""
    index_end: int | None = None
    """So are messages from this index on."""
    publish_ms_min: int | None = None
    """Messages published earlier are left out."""
    publish_ms_end: int | None = None
    """So are those published at this time or later."""
