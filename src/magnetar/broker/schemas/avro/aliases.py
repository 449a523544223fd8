"""Aliases of a reader's schema: the names by which a writer may have known its types and fields."""

from __future__ import annotations

from magnetar.broker.schemas.avro.schema import (
    ArraySchema,
    EnumSchema,
    FixedSchema,
    MapSchema,
    RecordSchema,
    Schema,
    UnionSchema,
)


class Aliases:
    def __init__(self, reader: Schema) -> None:
        self._types: dict[str, str] = {}
        self._fields: dict[str, dict[str, str]] = {}
        self._seen: set[int] = set()
        self._collect(reader)

    def type_name(self, written: str) -> str:
        return self._types.get(written, written)

    def field_name(self, written_record: str, written: str) -> str:
        return self._fields.get(written_record, {}).get(written, written)

    def _collect(self, schema: Schema) -> None:
        if id(schema) in self._seen:
            return
        self._seen.add(id(schema))
        match schema:
            case RecordSchema():
                self._add_record(schema)
            case EnumSchema() | FixedSchema():
                self._types.update(dict.fromkeys(schema.aliases, schema.name))
            case ArraySchema():
                self._collect(schema.items)
            case MapSchema():
                self._collect(schema.values)
            case UnionSchema():
                for branch in schema.branches:
                    self._collect(branch)

    def _add_record(self, record: RecordSchema) -> None:
        self._types.update(dict.fromkeys(record.aliases, record.name))
        fields = {alias: field.name for field in record.fields for alias in field.aliases}
        if fields:
            self._fields.update(dict.fromkeys((record.name, *record.aliases), fields))
        for field in record.fields:
            self._collect(field.schema)
