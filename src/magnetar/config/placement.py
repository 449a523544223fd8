"""Settings of placement: which bookies a new ensemble is made of."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.config.knobs import check_knobs, knob
from magnetar.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementConfig:
    """Where clients, brokers and auto-recovery put entries.

    Processes of a cluster should agree on the rules and on `racks`: a ledger is placed by the one that makes it and
    repaired by others. Changes need a restart, and hold for new ensembles only.
    """

    policy: str = knob(
        "rack",
        "How bookies are chosen: at random, spread over racks, or spread over regions and racks.",
        choices=("random", "rack", "region"),
        bookkeeper="ensemblePlacementPolicy",
        pulsar="bookkeeperClientRackawarePolicyEnabled",
    )
    # One rack may burn down: with two, a copy is left.
    min_racks_per_write_quorum: int = knob(
        2,
        "Every entry is written to bookies of at least this many racks, or of as many as the write quorum has bookies.",
        at_least=1,
        at_most=255,
        bookkeeper="minNumRacksPerWriteQuorum",
        pulsar="bookkeeperClientMinNumRacksPerWriteQuorum",
    )
    enforce_min_racks: bool = knob(
        False,
        "Refuse an ensemble that breaks this rule, and use no bookie of unknown rack; otherwise the rule is a wish.",
        bookkeeper="enforceMinNumRacksPerWriteQuorum",
        pulsar="bookkeeperClientEnforceMinNumRacksPerWriteQuorum",
    )
    racks: str = knob(
        "",
        "Racks of bookies as `bookie=rack, …`, a bookie being `host:port`, another bookie id, or a host, and a rack "
        "`/rack` or `/region/rack`. It goes before what the node /bookies says.",
    )
    disk_weight_enabled: bool = knob(
        False,
        "Prefer bookies with more free disk.",
        bookkeeper="diskWeightBasedPlacementEnabled",
        pulsar="bookkeeperDiskWeightBasedPlacementEnabled",
    )
    # Without a limit, a new and empty bookie would get nearly every new ledger of the cluster at once.
    disk_weight_max_multiple: int = knob(
        3,
        "No bookie counts for more than this many times the median of free disk.",
        at_least=1,
        at_most=1_000,
        bookkeeper="bookieMaxMultipleForWeightBasedPlacement",
    )
    quarantine_s: int = knob(
        1_800,
        "A bookie that failed too often gets no new ledgers for this long, unless there are too few others; "
        "0 turns quarantine off.",
        at_least=0,
        at_most=86_400,
        bookkeeper="bookieQuarantineTimeSeconds",
        pulsar="bookkeeperClientHealthCheckQuarantineTimeInSeconds",
    )
    quarantine_errors: int = knob(
        5,
        "So many failed requests within `quarantine_interval_s` are too often.",
        at_least=1,
        at_most=100_000,
        bookkeeper="bookieErrorThresholdPerInterval",
        pulsar="bookkeeperClientHealthCheckErrorThresholdPerInterval",
    )
    quarantine_interval_s: int = knob(
        60,
        "The time within which failed requests of a bookie are counted.",
        at_least=1,
        at_most=86_400,
        bookkeeper="bookieHealthCheckIntervalSeconds",
        pulsar="bookkeeperClientHealthCheckIntervalSeconds",
    )

    def __post_init__(self) -> None:
        check_knobs(self)
        rack_pairs(self.racks)


def rack_pairs(text: str) -> tuple[tuple[str, str], ...]:
    """(bookie, rack) of a `racks` setting, in its order."""
    pairs = []
    for item in (item.strip() for item in text.split(",")):
        if not item:
            continue  # A comma at the end is no mistake worth a message.
        bookie, separator, rack = (part.strip() for part in item.partition("="))
        if not (bookie and separator and rack.strip("/")):
            raise ConfigError(
                f"placement.racks: {item!r} is not of the form bookie=rack, such as host:3181=/region/rack"
            )
        pairs.append((bookie, rack))
    return tuple(pairs)
