"""Compiles tables of fields into functions that encode and decode Kafka's requests and answers.

    api = Api(3, "Metadata", versions=(0, 13), flexible=9, request=[F("topics", ...), ...], response=[...])
    value = api.decode_request(body, version)          a dict: the name of a field → its value
    parts = api.encode_response(value, version)        buffers, to be sent one after the other

A table says in which versions a field exists, from which on it may be null, and whether it is tagged. Its functions
are compiled once per message and version, when they are first needed. A field that a version does not have, or that a
value does not name, has its default.

Format:    A string has an int16 length, bytes an int32 one, an array an int32 count; -1 is null. In flexible versions
           these are unsigned varints of n + 1, with 0 for null, and every struct ends with tagged fields. Unknown tags
           are skipped. A tagged field that has its default is not written.
Limits:    A length is compared with what is left before anything is allocated. All arrays of one message together have
           at most `ELEMENTS_MAX` elements, because an element costs more memory than the bytes that announce it.
Failure:   What cannot be decoded is a RemoteProtocolError. Bytes after the last field are ignored, as Kafka ignores
           them: librdkafka sends three in its request for all topics.
Read next: tables.py
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from magnetar.errors import RemoteProtocolError

Buffer: TypeAlias = bytes | bytearray | memoryview
Value: TypeAlias = dict[str, Any]

ELEMENTS_MAX: Final = 100_000
NO_UUID: Final = UUID(int=0)
_VARINT_BYTES_MAX: Final = 5
_VERSION_MAX: Final = 2**15 - 1
_UNSET: Final[Any] = object()


class Reader:
    """Reads one message from `at` on; `end` is where it, or the part that is being read, ends."""

    __slots__ = ("at", "data", "elements_left", "end")

    def __init__(self, data: Buffer, at: int = 0, end: int | None = None) -> None:
        self.data = memoryview(data)
        self.at = at
        self.end = len(self.data) if end is None else end
        self.elements_left = ELEMENTS_MAX

    def take(self, size: int) -> memoryview:
        at = self.at
        if size < 0 or size > self.end - at:
            raise RemoteProtocolError(f"a field of {size} bytes where {self.end - at} are left")
        self.at = at + size
        return self.data[at : at + size]

    def varint(self) -> int:
        value = shift = 0
        for _ in range(_VARINT_BYTES_MAX):
            (byte,) = self.take(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & 0xFFFFFFFF
            shift += 7
        raise RemoteProtocolError(f"a varint of more than {_VARINT_BYTES_MAX} bytes")

    def count(self, count: int) -> int:
        """Checks the number of elements of an array, each of which takes a byte at least."""
        if count > self.end - self.at or count > self.elements_left:
            raise RemoteProtocolError(f"an array of {count} elements where {self.end - self.at} bytes are left")
        self.elements_left -= count
        return count


Encode: TypeAlias = "Callable[[list[Buffer], Any], None]"
Decode: TypeAlias = Callable[[Reader], Any]


def encode_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# --- types ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Primitive:
    name: str
    zero: Any
    format: str = ""
    """Of `struct`, for what has a fixed size."""


BOOL: Final = Primitive("bool", False, ">?")
INT8: Final = Primitive("int8", 0, ">b")
INT16: Final = Primitive("int16", 0, ">h")
UINT16: Final = Primitive("uint16", 0, ">H")
INT32: Final = Primitive("int32", 0, ">i")
INT64: Final = Primitive("int64", 0, ">q")
UUID16: Final = Primitive("uuid", NO_UUID)
STRING: Final = Primitive("string", "")
BYTES: Final = Primitive("bytes", b"")
RECORDS: Final = Primitive("records", None)
"""As BYTES, but decoded as a view of the message, and encoded from several buffers without joining them."""


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    type: FieldType
    since: int = 0
    until: int = _VERSION_MAX
    null: int = _VERSION_MAX + 1
    """From this version on it may be null."""
    tag: int = -1
    tagged: int = 0
    """From this version on it is a tagged field, if it has a tag."""
    default: Any = _UNSET

    def exists_in(self, version: int) -> bool:
        return self.since <= version <= self.until

    def is_tagged_in(self, version: int) -> bool:
        return self.tag >= 0 and version >= self.tagged

    @property
    def default_value(self) -> Any:
        if self.default is not _UNSET:
            return self.default
        if isinstance(self.type, Primitive):
            return self.type.zero
        return [] if isinstance(self.type, list) else {}


F = Field
FieldType: TypeAlias = "Primitive | list[Primitive] | list[Field] | tuple[Field, ...]"
"""A list of fields is an array of structs, a list of one primitive an array of them, and a tuple a single struct."""


def _fixed(kind: Primitive) -> tuple[Encode, Decode]:
    layout = struct.Struct(kind.format)
    pack, unpack, size = layout.pack, layout.unpack_from, layout.size

    def encode(out: list[Buffer], value: Any) -> None:
        out.append(pack(value))

    def decode(reader: Reader) -> Any:
        at = reader.at
        if size > reader.end - at:
            raise RemoteProtocolError(f"a field of {size} bytes where {reader.end - at} are left")
        reader.at = at + size
        return unpack(reader.data, at)[0]

    return encode, decode


def _encode_uuid(out: list[Buffer], value: UUID) -> None:
    out.append(value.bytes)


def _decode_uuid(reader: Reader) -> UUID:
    return UUID(bytes=bytes(reader.take(16)))


class _Lengths(NamedTuple):
    """How lengths and counts are written; -1 is null."""

    encode: Callable[[int], bytes]
    decode: Callable[[Reader], int]


_decode_int16 = _fixed(INT16)[1]
_decode_int32 = _fixed(INT32)[1]
_INT16_LENGTHS: Final = _Lengths(struct.Struct(">h").pack, _decode_int16)
_INT32_LENGTHS: Final = _Lengths(struct.Struct(">i").pack, _decode_int32)
_COMPACT: Final = _Lengths(lambda length: encode_varint(length + 1), lambda reader: reader.varint() - 1)


def _lengths(is_flexible: bool, *, is_string: bool = False) -> _Lengths:
    if is_flexible:
        return _COMPACT
    return _INT16_LENGTHS if is_string else _INT32_LENGTHS


def _sized(kind: Primitive, lengths: _Lengths, nullable: bool) -> tuple[Encode, Decode]:
    encode_length, decode_length = lengths
    null = encode_length(-1)
    is_string, is_records = kind is STRING, kind is RECORDS

    def encode(out: list[Buffer], value: Any) -> None:
        if value is None:
            assert nullable, f"a {kind.name} that must not be null"
            out.append(null)
        elif is_records:
            out.append(encode_length(sum(map(len, value))))
            out += value
        else:
            data = value.encode() if is_string else value
            out.append(encode_length(len(data)))
            out.append(data)

    def decode(reader: Reader) -> Any:
        length = decode_length(reader)
        if length < 0 and nullable:
            return None
        data = reader.take(length)
        if is_records:
            return data
        return _text(data) if is_string else bytes(data)

    return encode, decode


def _text(data: memoryview) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"a string that is not UTF-8: {error}") from None


def _array(element: tuple[Encode, Decode], lengths: _Lengths, nullable: bool) -> tuple[Encode, Decode]:
    encode_one, decode_one = element
    encode_length, decode_length = lengths

    def encode(out: list[Buffer], value: Sequence[Any] | None) -> None:
        if value is None:
            assert nullable, "an array that must not be null"
            out.append(encode_length(-1))
            return
        out.append(encode_length(len(value)))
        for each in value:
            encode_one(out, each)

    def decode(reader: Reader) -> list[Any] | None:
        count = decode_length(reader)
        if count < 0:
            if nullable:
                return None
            raise RemoteProtocolError("an array is null that must not be")
        return [decode_one(reader) for _ in range(reader.count(count))]

    return encode, decode


class _Tagged(NamedTuple):
    tag: int
    name: str
    default: Any
    encode: Encode
    decode: Decode


def _struct(fields: Sequence[Field], version: int, is_flexible: bool) -> tuple[Encode, Decode]:
    present = [field for field in fields if field.exists_in(version)]
    plain = [
        (field.name, field.default_value, *_compile(field, version, is_flexible))
        for field in present
        if not field.is_tagged_in(version)
    ]
    tagged = {
        field.tag: _Tagged(field.tag, field.name, field.default_value, *_compile(field, version, is_flexible))
        for field in sorted(present, key=lambda field: field.tag)
        if field.is_tagged_in(version)
    }
    defaults = {field.name: field.default_value for field in fields}

    def encode(out: list[Buffer], value: Mapping[str, Any]) -> None:
        for name, default, encode_field, _ in plain:
            encode_field(out, value.get(name, default))
        if is_flexible:
            _encode_tags(out, value, tagged.values())

    def decode(reader: Reader) -> Value:
        value = dict(defaults)
        for name, _, _, decode_field in plain:
            value[name] = decode_field(reader)
        if is_flexible:
            _decode_tags(reader, value, tagged)
        return value

    return encode, decode


def _encode_tags(out: list[Buffer], value: Mapping[str, Any], tagged: Any) -> None:
    written = [field for field in tagged if value.get(field.name, field.default) != field.default]
    out.append(encode_varint(len(written)))
    for field in written:
        parts: list[Buffer] = []
        field.encode(parts, value[field.name])
        data = b"".join(parts)
        out += (encode_varint(field.tag), encode_varint(len(data)), data)


def _decode_tags(reader: Reader, value: Value, tagged: Mapping[int, _Tagged]) -> None:
    for _ in range(reader.count(reader.varint())):
        tag, size = reader.varint(), reader.varint()
        start = reader.at
        reader.take(size)
        field = tagged.get(tag)
        if field is None:
            continue
        outer, reader.at, reader.end = reader.end, start, start + size
        value[field.name] = field.decode(reader)
        if reader.at != reader.end:
            raise RemoteProtocolError(f"tagged field {tag} has {size} bytes, of which {reader.at - start} are used")
        reader.end = outer


def skip_tags(reader: Reader) -> None:
    """Skips the tagged fields of a struct that has none."""
    _decode_tags(reader, {}, {})


def _compile(field: Field, version: int, is_flexible: bool) -> tuple[Encode, Decode]:
    kind, nullable = field.type, version >= field.null
    if isinstance(kind, list):
        first = kind[0]
        if isinstance(first, Primitive):
            element = _primitive(first, is_flexible, nullable=False)
        else:
            element = _struct(kind, version, is_flexible)  # type: ignore[arg-type]
        return _array(element, _lengths(is_flexible), nullable)
    if isinstance(kind, tuple):
        made = _struct(kind, version, is_flexible)
        return _nullable_struct(*made) if nullable else made
    return _primitive(kind, is_flexible, nullable=nullable)


def _primitive(kind: Primitive, is_flexible: bool, *, nullable: bool) -> tuple[Encode, Decode]:
    if kind.format:
        return _fixed(kind)
    if kind is UUID16:
        return _encode_uuid, _decode_uuid
    return _sized(kind, _lengths(is_flexible, is_string=kind is STRING), nullable)


def _nullable_struct(encode_some: Encode, decode_some: Decode) -> tuple[Encode, Decode]:
    def encode(out: list[Buffer], value: Mapping[str, Any] | None) -> None:
        out.append(b"\xff" if value is None else b"\x01")
        if value is not None:
            encode_some(out, value)

    def decode(reader: Reader) -> Value | None:
        (mark,) = reader.take(1)
        some: Value | None = None if mark > 0x7F else decode_some(reader)
        return some

    return encode, decode


# --- requests and answers ---------------------------------------------------------------------------------------------


class Api:
    """One kind of request and its answer, in all versions that are served."""

    def __init__(
        self,
        key: int,
        name: str,
        *,
        versions: tuple[int, int],
        flexible: int | None,
        request: Sequence[Field],
        response: Sequence[Field],
    ) -> None:
        self.key = key
        self.name = name
        self.version_min, self.version_max = versions
        self._flexible = flexible
        self._request = request
        self._response = response
        self._compiled: dict[tuple[bool, int], tuple[Encode, Decode]] = {}

    def __repr__(self) -> str:
        return f"<Api {self.name}>"

    def serves(self, version: int) -> bool:
        return self.version_min <= version <= self.version_max

    def is_flexible(self, version: int) -> bool:
        return self._flexible is not None and version >= self._flexible

    def decode_request(self, body: Buffer, version: int, start: int = 0) -> Value:
        return self._decode(True, body, version, start)

    def decode_response(self, body: Buffer, version: int, start: int = 0) -> Value:
        return self._decode(False, body, version, start)

    def encode_request(self, value: Mapping[str, Any], version: int) -> list[Buffer]:
        return self._encode(True, value, version)

    def encode_response(self, value: Mapping[str, Any], version: int) -> list[Buffer]:
        return self._encode(False, value, version)

    def _functions(self, is_request: bool, version: int) -> tuple[Encode, Decode]:
        found = self._compiled.get((is_request, version))
        if found is None:
            assert self.serves(version), f"{self.name} has no version {version} here"
            fields = self._request if is_request else self._response
            found = self._compiled[is_request, version] = _struct(fields, version, self.is_flexible(version))
        return found

    def _decode(self, is_request: bool, body: Buffer, version: int, start: int) -> Value:
        reader = Reader(body, start)
        value: Value = self._functions(is_request, version)[1](reader)
        return value

    def _encode(self, is_request: bool, value: Mapping[str, Any], version: int) -> list[Buffer]:
        out: list[Buffer] = []
        self._functions(is_request, version)[0](out, value)
        return out
