"""Decides whether a new schema fits the ones a topic has, by the strategy in force.

Invariant: another type never fits. AVRO, JSON and PROTOBUF have an Avro schema as their definition, and Avro's rules of
           resolution (avro/resolution.py): backward, the new one reads what the old ones wrote; forward, the other way
           round. Primitive types fit themselves, PROTOBUF_NATIVE the same message, KEY_VALUE if both its parts do.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from magnetar.errors import IncompatibleSchemaError, InvalidSchemaError, MalformedMetadataError
from magnetar.schemas.avro.resolution import mismatch
from magnetar.schemas.avro.schema import is_same
from magnetar.schemas.data import SchemaData, SchemaType
from magnetar.schemas.validation import parsed, root_message, split_key_value

UNDEFINED = "UNDEFINED"
_AUTO_UPDATE = {  # The former names of these strategies in namespaces.
    "AutoUpdateDisabled": "ALWAYS_INCOMPATIBLE",
    "Backward": "BACKWARD",
    "Forward": "FORWARD",
    "Full": "FULL",
    "AlwaysCompatible": "ALWAYS_COMPATIBLE",
    "BackwardTransitive": "BACKWARD_TRANSITIVE",
    "ForwardTransitive": "FORWARD_TRANSITIVE",
    "FullTransitive": "FULL_TRANSITIVE",
}


class CompatibilityStrategy(enum.StrEnum):
    """Backward: the new one reads what the old one wrote. Forward: the other way round. Transitive: with all before."""

    ALWAYS_INCOMPATIBLE = "ALWAYS_INCOMPATIBLE"
    ALWAYS_COMPATIBLE = "ALWAYS_COMPATIBLE"
    BACKWARD = "BACKWARD"
    FORWARD = "FORWARD"
    FULL = "FULL"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @classmethod
    def parse(cls, name: str) -> CompatibilityStrategy:
        try:
            return cls(name)
        except ValueError:
            known = ", ".join(cls)
            raise MalformedMetadataError(
                f"{name!r} is not a schema compatibility strategy: known are {known}"
            ) from None

    @property
    def is_transitive(self) -> bool:
        return self.name.endswith("_TRANSITIVE")

    @property
    def new_reads_old(self) -> bool:
        return self.name.startswith(("BACKWARD", "FULL"))

    @property
    def old_reads_new(self) -> bool:
        return self.name.startswith(("FORWARD", "FULL"))


def strategy_of_auto_update(older: object) -> str:
    """Returns the name of the strategy that namespaces called `older` before; an unknown one allows nothing."""
    return _AUTO_UPDATE.get(str(older), "ALWAYS_INCOMPATIBLE")


def check_compatible(before: Sequence[SchemaData], new: SchemaData, strategy: CompatibilityStrategy) -> None:
    """Raises IncompatibleSchemaError with the difference. `before`: all that count, the newest last."""
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
    """Reports whether type and definition are the same: byte by byte, or as Avro sees it."""
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
