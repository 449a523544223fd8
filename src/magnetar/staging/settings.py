"""How staged ledgers are written."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.wire.bookkeeper.digests import DigestType


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingSettings:
    """Per job; the quorums are the cluster's (`GET /admin/v2/magnetar/cluster`)."""

    ensemble_size: int = 1
    write_quorum: int = 1
    ack_quorum: int = 1
    digest_type: DigestType = DigestType.CRC32C
    open_ledgers_max: int = 1_000
    """Topics that one task writes to: each is a ledger, and a few requests to the metadata store."""

    def __post_init__(self) -> None:
        if not 1 <= self.ack_quorum <= self.write_quorum <= self.ensemble_size:
            raise ValueError("staging: ack_quorum <= write_quorum <= ensemble_size must hold, each at least 1")
