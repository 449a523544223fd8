"""CompatibilityStrategy: what a new schema of a topic must be able to do with the ones before it."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

from magnetar.errors import MalformedMetadataError

UNDEFINED = "UNDEFINED"
_AUTO_UPDATE = {  # The names that namespaces had for it before.
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


def namespace_strategy(policies: Mapping[str, Any]) -> CompatibilityStrategy | None:
    """What a namespace's policies say, in the new field or else in the one of old; None if in neither."""
    name = policies.get("schema_compatibility_strategy")
    if name is None or name == UNDEFINED:
        older = policies.get("schema_auto_update_compatibility_strategy")
        name = None if older is None else _AUTO_UPDATE.get(older, "ALWAYS_INCOMPATIBLE")
    return None if name is None else CompatibilityStrategy.parse(str(name))
