"""The columns of a topic's schema: a message is read with the schema it was written with, then fitted to the columns.

Versions:  rows are grouped by the version in their entry's metadata; one without a version is of the columns' schema.
Nulls:     a message without a value is null in all of them.
Errors:    a version that does not fit names itself; a value that cannot be read names its message.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from magnetar.broker.schemas.data import SchemaData, SchemaType, version_from_bytes
from magnetar.errors import IncompatibleSchemaError, InvalidSchemaError, MalformedEntryError
from magnetar.spark.decoding.columns import FIELD, Columns
from magnetar.spark.decoding.fixed_columns import values
from magnetar.spark.decoding.headers import Settled, keys
from magnetar.spark.decoding.options import WriterSchema
from magnetar.spark.decoding.readers import Reader, reader_for
from magnetar.spark.decoding.spans import Ints
from magnetar.spark.decoding.unreadable import UnreadableValueError

_NO_VERSION: Final = b""


class TypedColumns:
    def __init__(self, columns: Columns, writer_schema: WriterSchema | None) -> None:
        self._schema = columns.topic_schema
        self._wanted = pa.struct([(column.name, column.type) for column in columns.columns if column.source == FIELD])
        self._writer_schema = writer_schema
        self._readers: dict[tuple[str, bytes], Reader] = {}

    @property
    def sources(self) -> set[str]:
        """Raw columns that are needed to make these. Pairs may be separated though the columns' schema is inline: of
        another version, or of another topic."""
        is_pair = self._schema is not None and self._schema.type is SchemaType.KEY_VALUE
        return {"key"} if is_pair and self._wanted.num_fields > 0 else set()

    def columns(self, settled: Settled) -> dict[str, pa.Array]:
        if self._schema is None or not self._wanted.num_fields:
            return {}
        found = self._read(self._schema, settled)
        return dict(zip((field.name for field in self._wanted), found.flatten(), strict=True))

    def _read(self, schema: SchemaData, settled: Settled) -> pa.StructArray:
        rows = settled.rows
        payloads = values(settled)
        key_of_rows = keys(settled) if self.sources else None
        versions = [(part.topic, part.schema_version) for part in rows.parts]
        known = sorted(set(versions))
        if len(known) == 1:
            return self._read_version(schema, settled, known[0], np.arange(len(rows)), payloads, key_of_rows)
        number_of = {version: number for number, version in enumerate(known)}
        codes = np.array([number_of[version] for version in versions])[rows.entry]
        order = np.argsort(codes, kind="stable")
        arrays: list[pa.Array] = []
        for number, version in enumerate(known):
            which = np.flatnonzero(codes == number)
            taken = pa.array(which)
            part_keys = None if key_of_rows is None else key_of_rows.take(taken)
            arrays.append(self._read_version(schema, settled, version, which, payloads.take(taken), part_keys))
        places = np.empty(len(order), np.int64)
        places[order] = np.arange(len(order))
        return pa.concat_arrays(arrays).take(pa.array(places))

    def _read_version(
        self,
        schema: SchemaData,
        settled: Settled,
        version: tuple[str, bytes],
        rows: Ints,
        payloads: pa.BinaryArray,
        key_of_rows: pa.BinaryArray | None,
    ) -> pa.StructArray:
        reader = self._reader(schema, version)
        try:
            return reader(payloads, key_of_rows)
        except UnreadableValueError as error:
            row = int(rows[error.row])
            raise MalformedEntryError(
                f"{version[0]}: message {settled.rows.place(row)} is not of {_named(version[1])}: {error.reason}; "
                "valueSchema=raw reads it as bytes"
            ) from None

    def _reader(self, schema: SchemaData, version: tuple[str, bytes]) -> Reader:
        reader = self._readers.get(version)
        if reader is None:
            topic, number = version
            written = schema if number == _NO_VERSION or self._writer_schema is None else self._writer_schema(*version)
            try:
                reader = reader_for(written, schema, self._wanted)
            except (IncompatibleSchemaError, InvalidSchemaError) as error:
                raise IncompatibleSchemaError(
                    f"{topic}: messages of {_named(number)} do not fit the columns: {error}; leave that column out of "
                    "the query's .schema(…), or use valueSchema=raw"
                ) from error
            self._readers[version] = reader
        return reader


def _named(version: bytes) -> str:
    if version == _NO_VERSION:
        return "the topic's schema"
    try:
        return f"schema version {version_from_bytes(version)}"
    except InvalidSchemaError:
        return f"schema version 0x{version.hex()}"
