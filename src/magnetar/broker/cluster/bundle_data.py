"""BundleData: the leader's averages of all bundles, kept over a change of the leader.

Format:    `/loadbalance/bundle-data/{bundle}` and `/loadbalance/broker-time-average/{broker}`, as in load_report.py.
Order:     The leader adds a sample for each bundle at equal intervals, whether or not its broker has written a new
           report. A bundle that it sees for the first time continues from its node.
Limits:    A bundle that no broker has reported for `FORGET_S` is forgotten, and its node deleted. Until then a bundle
           whose broker has died is placed by the load that it had.
Read next: load_manager.py
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Final

from magnetar.broker.cluster.load_report import BrokerReport, BundleAverages, BundleStats, encode_broker_averages
from magnetar.broker.cluster.placement import BundleLoad
from magnetar.errors import MalformedMetadataError, NodeExistsError, NoNodeError
from magnetar.metadata.store import MetadataStore
from magnetar.runtime.gather import gather_bounded
from magnetar.runtime.slices import Slices

log = logging.getLogger(__name__)

BUNDLES: Final = "/loadbalance/bundle-data"
BROKERS: Final = "/loadbalance/broker-time-average"
FORGET_S: Final = 900.0
_REQUESTS_AT_ONCE: Final = 32
_UNSEEN: Final = BundleLoad(100.0, 100_000.0)
"""What a bundle is expected to cost that was never measured; as in Pulsar, 50 messages/s of 1 kB, in and out."""


class BundleData:
    """Is filled by the leader only."""

    def __init__(self, store: MetadataStore, slices: Slices) -> None:
        self.version = 0
        """Grows when averages change."""
        self._store = store
        self._slices = slices
        self._averages: dict[str, BundleAverages] = {}
        self._seen_s: dict[str, float] = {}
        self._forgotten: dict[str, None] = {}
        """Bundles whose nodes are to be deleted."""
        self._brokers: dict[str, None] = {}
        """Brokers whose averages were stored."""

    def __len__(self) -> int:
        return len(self._averages)

    def load(self, bundle: str, stats: BundleStats | None = None) -> BundleLoad:
        """Returns what the bundle costs. `stats`: its last measurement, if a broker reports it now."""
        averages = self._averages.get(bundle)
        if averages is None and stats is None:
            return _UNSEEN
        known = averages if averages is not None else BundleAverages().with_sample(stats or BundleStats())
        return known.load(stats if stats is not None else BundleStats(topics=known.topics))

    async def sample(self, reports: Mapping[str, BrokerReport], now_s: float) -> None:
        stats = {bundle: each for report in reports.values() for bundle, each in report.bundles.items()}
        unknown = [bundle for bundle in stats if bundle not in self._averages]
        found = await gather_bounded([partial(self._read, bundle) for bundle in unknown], _REQUESTS_AT_ONCE)
        self._averages |= dict(zip(unknown, found, strict=True))
        for bundle, each in stats.items():
            self._averages[bundle] = self._averages.get(bundle, BundleAverages()).with_sample(each)
            self._seen_s[bundle] = now_s
            self._forgotten.pop(bundle, None)
            await self._slices.turn()
        self.version += 1
        for bundle in [bundle for bundle, seen_s in self._seen_s.items() if now_s - seen_s > FORGET_S]:
            self.forget(bundle)

    def forget(self, bundle: str) -> None:
        """For a bundle that does not exist any more, or is not used."""
        self._averages.pop(bundle, None)
        self._seen_s.pop(bundle, None)
        self._forgotten[bundle] = None

    def clear(self) -> None:
        """Forgets everything, but deletes no node: another broker leads."""
        self.version += 1
        for table in (self._averages, self._seen_s, self._forgotten, self._brokers):
            table.clear()

    async def _read(self, bundle: str) -> BundleAverages:
        path = f"{BUNDLES}/{bundle}"
        node = await self._store.get(path)
        if node is None or not node.value:
            return BundleAverages()
        try:
            return BundleAverages.decode(path, node.value)
        except MalformedMetadataError as error:
            log.warning("the load of a bundle is measured anew", extra={"why": str(error)})
            return BundleAverages()

    # --- storing ------------------------------------------------------------------------------------------------------

    async def write(self, reports: Mapping[str, BrokerReport]) -> None:
        """Stores all averages, for the next leader."""
        values = {f"{BUNDLES}/{bundle}": averages.encode() for bundle, averages in self._averages.items()}
        for broker, report in reports.items():
            owned = [self._averages[bundle] for bundle in report.bundles if bundle in self._averages]
            values[f"{BROKERS}/{broker}"] = encode_broker_averages(owned)
        gone = [broker for broker in self._brokers if broker not in reports]
        deleted = [*(f"{BUNDLES}/{bundle}" for bundle in self._forgotten), *(f"{BROKERS}/{broker}" for broker in gone)]
        self._forgotten.clear()
        self._brokers = dict.fromkeys(reports)
        works = [*(partial(self._put, *item) for item in values.items()), *(partial(self._delete, p) for p in deleted)]
        await gather_bounded(works, _REQUESTS_AT_ONCE)

    async def _put(self, path: str, value: bytes) -> None:
        try:
            await self._store.put(path, value)
        except NoNodeError:
            try:
                await self._store.create(path, value, make_parents=True)
            except NodeExistsError:
                return  # A former leader has just written it.

    async def _delete(self, path: str) -> None:
        try:
            await self._store.delete(path)
        except NoNodeError:
            return
