"""Settings of the schema registry, and what topics get that set nothing about schemas."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.config.knobs import check_knobs, knob

STRATEGIES = (
    *("ALWAYS_INCOMPATIBLE", "ALWAYS_COMPATIBLE", "BACKWARD", "FORWARD", "FULL"),
    *("BACKWARD_TRANSITIVE", "FORWARD_TRANSITIVE", "FULL_TRANSITIVE"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemasConfig:
    """All brokers of a cluster should agree in everything here: a topic moves between them."""

    compatibility: str = knob(
        "FULL",
        "What a new schema of a topic must be compatible with.",
        choices=STRATEGIES,
        pulsar="schemaCompatibilityStrategy",
    )
    auto_update: bool = knob(
        True,
        "A producer or consumer may bring a new schema; if false, only the admin API.",
        pulsar="isAllowAutoUpdateSchemaEnabled",
    )
    validation_enforced: bool = knob(
        False,
        "A producer without a schema may not publish to a topic that has one.",
        pulsar="isSchemaValidationEnforced",
    )
    definition_bytes_max: int = knob(2**20, "Bytes of one schema's definition.", at_least=1_024, at_most=4 * 2**20)
    # Each is a ledger to read when a schema is checked against all of them.
    versions_max: int = knob(
        1_000, "Versions of one topic's schema; then old ones must be deleted first.", at_least=1, at_most=100_000
    )

    def __post_init__(self) -> None:
        check_knobs(self)
