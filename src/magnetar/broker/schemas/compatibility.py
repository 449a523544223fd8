"""Whether a new schema fits the ones a topic has, by the strategy in force.

Avro:      AVRO, JSON and PROTOBUF have an Avro schema as their definition, and Avro's rules of resolution
           (avro/resolution.py): backward, the new one reads what the old ones wrote; forward, the other way round.
Others:    primitive types fit themselves, PROTOBUF_NATIVE the same message, KEY_VALUE if both its parts do.
Type:      another type never fits.
"""

from __future__ import annotations

from collections.abc import Sequence

from magnetar.broker.schemas.avro.equality import is_same
from magnetar.broker.schemas.avro.resolution import mismatch
from magnetar.broker.schemas.data import SchemaData, SchemaType
from magnetar.broker.schemas.key_value import split_key_value
from magnetar.broker.schemas.protobuf_native import root_message
from magnetar.broker.schemas.strategy import CompatibilityStrategy
from magnetar.broker.schemas.validation import parsed
from magnetar.errors import IncompatibleSchemaError, InvalidSchemaError


def check_compatible(before: Sequence[SchemaData], new: SchemaData, strategy: CompatibilityStrategy) -> None:
    """IncompatibleSchemaError says what does not fit. `before`: all that count, the newest last."""
    if strategy is CompatibilityStrategy.ALWAYS_COMPATIBLE or not before:
        return
    for old in before:
        if old.type is not new.type:
            raise IncompatibleSchemaError(
                f"the topic has a schema of type {old.type.name}, and the new one is of type {new.type.name}"
            )
    if strategy is CompatibilityStrategy.ALWAYS_INCOMPATIBLE and new.type is not SchemaType.EXTERNAL:
        raise IncompatibleSchemaError("the strategy is ALWAYS_INCOMPATIBLE: schemas of this topic do not change")
    try:
        _check_type(before, new, strategy)
    except InvalidSchemaError as error:
        raise IncompatibleSchemaError(f"a schema cannot be compared: {error}") from error


def _check_type(before: Sequence[SchemaData], new: SchemaData, strategy: CompatibilityStrategy) -> None:
    if new.type.is_avro_based:
        for old in reversed(before):
            _check_avro(old, new, strategy)
    elif new.type is SchemaType.PROTOBUF_NATIVE:
        for old in reversed(before):
            _check_protobuf(old, new)
    elif new.type is SchemaType.KEY_VALUE:
        _check_key_value(before, new, strategy)


def _check_avro(old: SchemaData, new: SchemaData, strategy: CompatibilityStrategy) -> None:
    old_schema, new_schema = parsed(old), parsed(new)
    if strategy.new_reads_old and (found := mismatch(new_schema, old_schema)) is not None:
        raise IncompatibleSchemaError(f"strategy {strategy}: the new schema cannot read the old one's: {found}")
    if strategy.old_reads_new and (found := mismatch(old_schema, new_schema)) is not None:
        raise IncompatibleSchemaError(f"strategy {strategy}: the old schema cannot read the new one's: {found}")


def _check_protobuf(old: SchemaData, new: SchemaData) -> None:
    old_name, new_name = root_message(old.data), root_message(new.data)
    if old_name != new_name:
        raise IncompatibleSchemaError(f"the topic's messages are {old_name}, and the new schema's are {new_name}")


def _check_key_value(before: Sequence[SchemaData], new: SchemaData, strategy: CompatibilityStrategy) -> None:
    old_parts = [split_key_value(old) for old in before]
    for index, part in enumerate(split_key_value(new)):
        check_compatible([parts[index] for parts in old_parts], part, strategy)


def is_same_schema(one: SchemaData, other: SchemaData) -> bool:
    """Of the same type, and the same definition: byte by byte, or as Avro sees it."""
    if one.type is not other.type:
        return False
    if one.data == other.data:
        return True
    return one.type.is_avro_based and _is_same_avro(one, other)


def _is_same_avro(one: SchemaData, other: SchemaData) -> bool:
    try:
        return is_same(parsed(one), parsed(other))
    except InvalidSchemaError:
        return False
