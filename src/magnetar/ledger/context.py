"""The parts that everything opened by one client shares."""

from __future__ import annotations

from typing import NamedTuple

from magnetar.config.ledger import LedgerConfig
from magnetar.ledger.channels.bookies import Bookies
from magnetar.ledger.metadata import MetadataContext
from magnetar.metadata.bookkeeper.ledgers import LedgerMetadataStore
from magnetar.quorum.placement import PlacementPolicy
from magnetar.runtime.runtime import Entropy


class LedgerContext(NamedTuple):
    metadata: MetadataContext
    bookies: Bookies
    placement: PlacementPolicy
    config: LedgerConfig

    @property
    def ledgers(self) -> LedgerMetadataStore:
        return self.metadata.ledgers

    @property
    def entropy(self) -> Entropy:
        return self.metadata.entropy
