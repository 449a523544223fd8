"""Decides whether one schema can read what another one wrote: Avro's rules of resolution, as Apache's broker does.

Invariant: records are compared by their fields, whatever their names. A field that the writer lacks needs a default
           that fits (`fits`). Of enums, only the names must match, without the namespace; a symbol that the reader
           lacks is an error of a later read. Every branch of the writer's union must find one of the reader's: the same
           kind, for named types with the same full name, for records otherwise the first whose fields fit; then one
           that it can be promoted to. `Aliases` of the reader stand for names that the writer may have used: of types,
           and of fields in the same record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from magnetar.schemas.avro.schema import (
    ArraySchema,
    EnumSchema,
    FixedSchema,
    MapSchema,
    RecordSchema,
    Schema,
    UnionSchema,
    name_of,
    short_name,
)

_NUMBERS = ("int", "long", "float", "double")


def fits(schema: Schema, value: Any) -> bool:
    """A union's default may be of any of its branches. A record's may leave out fields that have a default
    themselves."""
    match schema:
        case UnionSchema():
            return any(fits(branch, value) for branch in schema.branches)
        case RecordSchema():
            return isinstance(value, dict) and all(
                fits(field.schema, value[field.name]) if field.name in value else field.has_default
                for field in schema.fields
            )
        case ArraySchema():
            return isinstance(value, list) and all(fits(schema.items, each) for each in value)
        case MapSchema():
            return isinstance(value, dict) and all(fits(schema.values, each) for each in value.values())
        case EnumSchema():
            return value in schema.symbols
        case FixedSchema():
            return isinstance(value, str)
        case _:
            return _fits_primitive(schema.kind, value)


def _fits_primitive(kind: str, value: Any) -> bool:
    if kind == "null":
        return value is None
    if kind == "boolean":
        return isinstance(value, bool)
    if kind in _NUMBERS:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, str)


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


_PROMOTIONS: Final = {  # Written as → may be read as.
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The mismatch, and its place as a path of field names."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"at {self.where}: {self.what}" if self.where else self.what


def mismatch(reader: Schema, writer: Schema) -> Mismatch | None:
    """Returns None if the reader can read everything that the writer wrote."""
    return _Resolution(Aliases(reader)).compare(reader, writer, "")


class _Resolution:
    def __init__(self, aliases: Aliases) -> None:
        self._aliases = aliases
        self._records: dict[tuple[int, int], Mismatch | None] = {}  # A pair in comparison counts as fitting for now.

    def compare(self, reader: Schema, writer: Schema, where: str) -> Mismatch | None:
        if isinstance(writer, UnionSchema):
            found = (self.compare(reader, branch, where) for branch in writer.branches)
            return next((each for each in found if each is not None), None)
        if isinstance(reader, UnionSchema):
            return self._into_union(reader, writer, where)
        if reader.kind != writer.kind:
            is_promoted = reader.kind in _PROMOTIONS.get(writer.kind, ())
            return None if is_promoted else Mismatch(where, f"{name_of(writer)} cannot be read as {name_of(reader)}")
        return self._same_kind(reader, writer, where)

    def _same_kind(self, reader: Schema, writer: Schema, where: str) -> Mismatch | None:
        match reader, writer:
            case RecordSchema(), RecordSchema():
                return self._record(reader, writer, where)
            case ArraySchema(), ArraySchema():
                return self.compare(reader.items, writer.items, f"{where}[]")
            case MapSchema(), MapSchema():
                return self.compare(reader.values, writer.values, f"{where}{{}}")
            case EnumSchema(), EnumSchema():
                return self._named(reader, writer, where)
            case FixedSchema(), FixedSchema():
                wrong_size = reader.size != writer.size
                of_size = Mismatch(where, f"{writer.size} bytes of fixed {writer.name} are read as {reader.size}")
                return self._named(reader, writer, where) or (of_size if wrong_size else None)
            case _:
                return None

    def _named(self, reader: EnumSchema | FixedSchema, writer: EnumSchema | FixedSchema, where: str) -> Mismatch | None:
        if short_name(reader.name) == short_name(self._aliases.type_name(writer.name)):
            return None
        return Mismatch(where, f"{writer.kind} {writer.name} is read as one of another name, {reader.name}")

    def _record(self, reader: RecordSchema, writer: RecordSchema, where: str) -> Mismatch | None:
        pair = (id(reader), id(writer))
        if pair not in self._records:
            self._records[pair] = None
            self._records[pair] = self._fields(reader, writer, where)
        return self._records[pair]

    def _fields(self, reader: RecordSchema, writer: RecordSchema, where: str) -> Mismatch | None:
        written = {self._aliases.field_name(writer.name, field.name): field for field in writer.fields}
        for field in reader.fields:
            place = f"{where}.{field.name}" if where else field.name
            if field.name in written:
                found = self.compare(field.schema, written[field.name].schema, place)
                if found is not None:
                    return found
            elif not field.has_default:
                return Mismatch(place, "the reader needs this field, the writer lacks it, and it has no default")
            elif not fits(field.schema, field.default):
                return Mismatch(
                    place, f"the writer lacks this field, and its default {field.default!r} does not fit it"
                )
        return None

    def _into_union(self, union: UnionSchema, writer: Schema, where: str) -> Mismatch | None:
        branch = self._branch(union, writer, where)
        if branch is None:
            names = ", ".join(map(name_of, union.branches))
            return Mismatch(where, f"{name_of(writer)} is read as a union of {names}, which has nothing like it")
        return self.compare(branch, writer, where)

    def _branch(self, union: UnionSchema, writer: Schema, where: str) -> Schema | None:
        alike = [branch for branch in union.branches if branch.kind == writer.kind]
        if isinstance(writer, (RecordSchema, EnumSchema, FixedSchema)):
            name = self._aliases.type_name(writer.name)
            exact = [branch for branch in alike if name_of(branch) == name]
            return exact[0] if exact else self._by_structure(alike, writer, name, where)
        if alike:
            return alike[0]
        promoted = _PROMOTIONS.get(writer.kind, ())
        return next((branch for branch in union.branches if branch.kind in promoted), None)

    def _by_structure(self, alike: list[Schema], writer: Schema, name: str, where: str) -> Schema | None:
        """Returns, for records only, the last fitting one with the same short name, otherwise the first that fits."""
        if not isinstance(writer, RecordSchema):
            return None
        fitting = [
            branch
            for branch in alike
            if isinstance(branch, RecordSchema) and self._record(branch, writer, where) is None
        ]
        same_name = [branch for branch in fitting if short_name(branch.name) == short_name(name)]
        return same_name[-1] if same_name else next(iter(fitting), None)
