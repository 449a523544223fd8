"""Settings of the schema registry, and the default schema policies of topics."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.config.knobs import check_knobs, knob

STRATEGIES = (
    *("ALWAYS_INCOMPATIBLE", "ALWAYS_COMPATIBLE", "BACKWARD", "FORWARD", "FULL"),
    *("BACKWARD_TRANSITIVE", "FORWARD_TRANSITIVE", "FULL_TRANSITIVE"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemasConfig:
    """The schema registry, and the default schema policies of topics.

    All brokers of a cluster should have the same values, because topics move between brokers. Changes need a restart.
    """

    compatibility: str = knob(
        "FULL",
        "Compatibility check that a new schema must pass against the existing schemas of its topic.",
        choices=STRATEGIES,
        pulsar="schemaCompatibilityStrategy",
    )
    auto_update: bool = knob(
        True,
        "Allow producers and consumers to add a new schema to a topic. If false, only the admin API can.",
        pulsar="isAllowAutoUpdateSchemaEnabled",
    )
    validation_enforced: bool = knob(
        False,
        "Refuse producers without a schema on topics that have a schema.",
        pulsar="isSchemaValidationEnforced",
    )
    definition_bytes_max: int = knob(
        2**20, "Largest size in bytes of one schema definition.", at_least=1_024, at_most=4 * 2**20
    )
    # Each is a ledger to read when a schema is checked against all of them.
    versions_max: int = knob(
        1_000,
        "Number of schema versions that one topic may have. At the limit, old versions must be deleted before a new "
        "one is accepted.",
        at_least=1,
        at_most=100_000,
    )

    def __post_init__(self) -> None:
        check_knobs(self)
