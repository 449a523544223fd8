"""Messages of a schema, written as clients write them."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any

import fastavro

from magnetar.schemas.data import SchemaData, SchemaType, version_to_bytes
from magnetar.spark.decoding.columns import Columns, topic_columns
from magnetar.spark.decoding.inputs import DecodeOptions
from tests.unit.spark.decoding.stored import EntryFields, Sent, batch, decode, run


def record(*fields: tuple[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields], **more}


def avro(definition: Any) -> SchemaData:
    return SchemaData(SchemaType.AVRO, json.dumps(definition).encode())


def of_json(definition: Any) -> SchemaData:
    return SchemaData(SchemaType.JSON, json.dumps(definition).encode())


def avro_bytes(definition: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(definition, _write_hint=False), value)
    return out.getvalue()


def read(
    schema: SchemaData, values: Sequence[bytes | None], columns: Columns | None = None, **more: Any
) -> list[dict[str, Any]]:
    """The typed columns of each message."""
    return read_messages(schema, [Sent(value) for value in values], columns, **more)


def read_messages(
    schema: SchemaData, messages: Sequence[Sent], columns: Columns | None = None, **more: Any
) -> list[dict[str, Any]]:
    columns = columns or topic_columns(schema, include_headers=False)
    rows = decode(run([batch(messages)]), columns=columns, options=DecodeOptions(**more))
    return [{name: value for name, value in row.items() if not name.startswith("__")} for row in rows]


def of_version(version: int, values: Sequence[bytes | None]) -> bytes:
    return batch([Sent(value) for value in values], EntryFields(schema_version=version_to_bytes(version)))
