"""What everything that one client opens has in common."""

from __future__ import annotations

from typing import NamedTuple

from magnetar.config.ledger import LedgerConfig
from magnetar.ledger.bookies import Bookies
from magnetar.ledger.compare_and_set import MetadataParts
from magnetar.metadata.bookkeeper.ledgers import LedgerMetadataStore
from magnetar.quorum.placement import PlacementPolicy
from magnetar.runtime.entropy import Entropy


class Parts(NamedTuple):
    metadata: MetadataParts
    bookies: Bookies
    placement: PlacementPolicy
    config: LedgerConfig

    @property
    def ledgers(self) -> LedgerMetadataStore:
        return self.metadata.ledgers

    @property
    def entropy(self) -> Entropy:
        return self.metadata.entropy
