"""Assemble: what makes a broker one of several, to be given to `Broker.open` as its ownership."""

from __future__ import annotations

from functools import partial

from magnetar.broker.cluster.commands import AdminCommands
from magnetar.broker.cluster.load_manager import LoadManager
from magnetar.broker.cluster.ownership import BundleOwnership
from magnetar.broker.cluster.traffic import usage_of
from magnetar.broker.ownership import OwnershipContext
from magnetar.runtime.metrics import ProcessUsage


def cluster_ownership(context: OwnershipContext) -> BundleOwnership:
    """Returns the ownership of one broker of a cluster, with its load manager."""
    entropy = context.runtime.entropy
    usage = partial(usage_of, ProcessUsage())
    commands = AdminCommands(entropy.random)
    manager = LoadManager(context.resources, context.config, entropy, context.address, commands, usage)
    return BundleOwnership(context, manager, manager)
