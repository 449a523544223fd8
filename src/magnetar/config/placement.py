"""Settings of placement: how the bookies of a ledger are chosen."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.config.knobs import check_knobs, knob
from magnetar.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementConfig:
    """How brokers and other ledger clients choose the bookies of a ledger.

    All processes of a cluster should have the same values: one process creates a ledger, and others may repair it.
    Changes need a restart, and apply only to ledgers that are created or repaired after it.
    """

    policy: str = knob(
        "rack",
        "How the bookies of a ledger are chosen: at random, spread over racks, or spread over regions and racks.",
        choices=("random", "rack", "region"),
        bookkeeper="ensemblePlacementPolicy",
        pulsar="bookkeeperClientRackawarePolicyEnabled",
    )
    # With copies in two racks, one survives the loss of a rack.
    min_racks_per_write_quorum: int = knob(
        2,
        "Number of racks that each entry must be spread over. A write quorum with fewer bookies than this uses one "
        "rack for each bookie.",
        at_least=1,
        at_most=255,
        bookkeeper="minNumRacksPerWriteQuorum",
        pulsar="bookkeeperClientMinNumRacksPerWriteQuorum",
    )
    enforce_min_racks: bool = knob(
        False,
        "Refuse to create a ledger that would break `min_racks_per_write_quorum`, and use no bookie whose rack is "
        "unknown. If false, the rule is only a preference.",
        bookkeeper="enforceMinNumRacksPerWriteQuorum",
        pulsar="bookkeeperClientEnforceMinNumRacksPerWriteQuorum",
    )
    racks: str = knob(
        "",
        "Racks of bookies as `bookie=rack, …`. A bookie is a `host:port`, a bookie id or a host; a rack is `/rack` or "
        "`/region/rack`. This setting overrides the metadata node `/bookies`.",
    )
    disk_weight_enabled: bool = knob(
        False,
        "Prefer bookies with more free disk space.",
        bookkeeper="diskWeightBasedPlacementEnabled",
        pulsar="bookkeeperDiskWeightBasedPlacementEnabled",
    )
    # Without a limit, a new and empty bookie would get nearly every new ledger of the cluster at once.
    disk_weight_max_multiple: int = knob(
        3,
        "Upper bound of a bookie's weight, as a multiple of the median free disk space. It keeps a new, empty bookie "
        "from getting nearly all new ledgers.",
        at_least=1,
        at_most=1_000,
        bookkeeper="bookieMaxMultipleForWeightBasedPlacement",
    )
    quarantine_s: int = knob(
        1_800,
        "Seconds for which a bookie that failed too often gets no new ledgers, unless too few other bookies exist. 0 "
        "turns quarantine off.",
        at_least=0,
        at_most=86_400,
        bookkeeper="bookieQuarantineTimeSeconds",
        pulsar="bookkeeperClientHealthCheckQuarantineTimeInSeconds",
    )
    quarantine_errors: int = knob(
        5,
        "Number of failed requests within `quarantine_interval_s` that puts a bookie in quarantine.",
        at_least=1,
        at_most=100_000,
        bookkeeper="bookieErrorThresholdPerInterval",
        pulsar="bookkeeperClientHealthCheckErrorThresholdPerInterval",
    )
    quarantine_interval_s: int = knob(
        60,
        "Length in seconds of the period in which `quarantine_errors` counts failed requests.",
        at_least=1,
        at_most=86_400,
        bookkeeper="bookieHealthCheckIntervalSeconds",
        pulsar="bookkeeperClientHealthCheckIntervalSeconds",
    )

    def __post_init__(self) -> None:
        check_knobs(self)
        rack_pairs(self.racks)


def rack_pairs(text: str) -> tuple[tuple[str, str], ...]:
    """Returns the (bookie, rack) pairs of a `racks` setting, in its order."""
    pairs = []
    for item in (item.strip() for item in text.split(",")):
        if not item:
            continue  # A comma at the end is harmless.
        bookie, separator, rack = (part.strip() for part in item.partition("="))
        if not (bookie and separator and rack.strip("/")):
            raise ConfigError(
                f"placement.racks: {item!r} does not have the form bookie=rack, such as host:3181=/region/rack"
            )
        pairs.append((bookie, rack))
    return tuple(pairs)
