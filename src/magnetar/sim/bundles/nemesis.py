"""The nemesis of a world of bundles: that of topics, and sessions of brokers that end.

Sessions:  one ends at once, and its nodes with it or later; or while its broker cannot reach the metadata, and still
           serves; or while the broker stands still, so that another one owns its bundles when it continues.
"""

from __future__ import annotations

from random import Random

from magnetar.sim.bundles.cluster import BundleCluster
from magnetar.sim.bundles.watch import BundleWatch
from magnetar.sim.bundles.workload import BundleWorkload
from magnetar.sim.topics.nemesis import TopicNemesis


class BundleNemesis(TopicNemesis):
    cluster: BundleCluster
    workload: BundleWorkload
    watch: BundleWatch

    def __init__(self, cluster: BundleCluster, workload: BundleWorkload, watch: BundleWatch) -> None:
        super().__init__(cluster, workload, watch)
        self._strikes["session"] = self._end_session

    async def _end_session(self, random: Random) -> None:
        names = self.cluster.running_owners()
        if not names:
            return
        name = random.choice(names)
        timeout_s = self.options.session_timeout_ms / 1000
        kind = random.choice(("expired", "expired twice", "expired, and its nodes stay", "cut", "paused"))
        if kind == "paused":
            self.workload.pause_past_session(name, random.choice((0.0, 0.1)) * random.random())
            return
        self.watch.struck(f"session {kind}")
        if kind == "cut":
            self.cluster.cut_for(name, timeout_s * random.uniform(0.5, 2.0))
            return
        if kind == "expired, and its nodes stay":
            self.cluster.expire_leaving_nodes(name, timeout_s * random.uniform(0.1, 1.5))
        else:
            self.cluster.expire(name)
        if kind == "expired twice":  # While it owns its bundles again.
            self._later(0.01 * random.random(), lambda: self.cluster.expire(name))
