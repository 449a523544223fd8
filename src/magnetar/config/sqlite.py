"""Settings of the embedded metadata store."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.config.knobs import check_knobs, knob


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteConfig:
    """The store used when `metadata.url` begins with `sqlite:`.

    One process owns the file, so there is nobody to agree with. Changes need a restart.
    """

    # One transaction is one sync of the disk; its size bounds how long the first caller in it waits for the last.
    group_operations_max: int = knob(
        1_000,
        "Operations that share one transaction, and so one sync of the disk.",
        at_least=1,
        at_most=100_000,
        pulsar="metadataStoreBatchingMaxOperations",
    )

    def __post_init__(self) -> None:
        check_knobs(self)
