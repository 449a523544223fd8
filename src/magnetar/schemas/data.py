"""A schema as the registry keeps it: its type, its definition, and its owner's properties.

Format:    a type has three numbers: on the wire, in the store (one more than our own), and our own, Pulsar's
           `SchemaType`. They differ for EXTERNAL and for types that only clients know, so conversions are here and
           nowhere else. A version is a number from 0 on; on the wire eight bytes, big-endian.
"""

from __future__ import annotations

import enum
import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from magnetar.errors import InvalidSchemaError

_VERSION = struct.Struct(">q")


class SchemaType(enum.IntEnum):
    AUTO_PUBLISH = -4
    AUTO_CONSUME = -3
    AUTO = -2
    BYTES = -1
    NONE = 0
    STRING = 1
    JSON = 2
    PROTOBUF = 3
    AVRO = 4
    BOOLEAN = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FLOAT = 10
    DOUBLE = 11
    DATE = 12
    TIME = 13
    TIMESTAMP = 14
    KEY_VALUE = 15
    INSTANT = 16
    LOCAL_DATE = 17
    LOCAL_TIME = 18
    LOCAL_DATE_TIME = 19
    PROTOBUF_NATIVE = 20
    EXTERNAL = 21

    @classmethod
    def from_wire(cls, number: int) -> SchemaType:
        """Converts from `Schema.Type` of the binary protocol."""
        if number in _FROM_WIRE:
            return _FROM_WIRE[number]
        if not 0 <= number <= cls.PROTOBUF_NATIVE:
            raise InvalidSchemaError(f"{number} is not a type of schemas")
        return cls(number)

    def to_wire(self) -> int:
        return _TO_WIRE.get(self, max(self.value, 0))

    @classmethod
    def from_stored(cls, number: int) -> SchemaType:
        return cls(number - 1)

    def to_stored(self) -> int:
        return max(self.value, 0) + 1

    @property
    def is_avro_based(self) -> bool:
        """Reports whether the definition is an Avro schema, whatever the messages are."""
        return self in (SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF)


_FROM_WIRE = {21: SchemaType.AUTO_CONSUME, 22: SchemaType.EXTERNAL}
_TO_WIRE = {kind: number for number, kind in _FROM_WIRE.items()}


@dataclass(frozen=True, slots=True)
class SchemaData:
    type: SchemaType
    data: bytes
    """The definition: an Avro schema in JSON, a descriptor; empty for primitive types."""
    properties: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    timestamp_ms: int = 0
    is_deleted: bool = False

    @property
    def hash(self) -> bytes:
        return hashlib.sha256(self.data).digest()


@dataclass(frozen=True, slots=True)
class StoredSchema:
    """One version of a topic's schema."""

    schema: SchemaData
    version: int

    @property
    def version_bytes(self) -> bytes:
        return version_to_bytes(self.version)


def version_to_bytes(version: int) -> bytes:
    return _VERSION.pack(version)


def version_from_bytes(version: bytes) -> int:
    """Converts from the wire. Clients before 2.4 send 64 bytes, of which the first eight count."""
    if len(version) < _VERSION.size:
        raise InvalidSchemaError(f"a schema's version has eight bytes, not {len(version)}")
    return int(_VERSION.unpack_from(version)[0])
