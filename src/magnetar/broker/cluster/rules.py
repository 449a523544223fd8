"""Rules: the isolation policies, failure domains and anti-affinity groups of a cluster, as they are stored now.

They are read through the cache of metadata, so that a lookup costs no request, and a change is in force at once.

Failure:   A stored policy that cannot be followed is left out, and logged as an error: one mistake must not leave all
           namespaces without an owner. Our admin interface refuses such a policy, and so does Pulsar's.
Read next: isolation.py, broker/resources/isolation.py
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from magnetar.broker.cluster.isolation import Isolation, IsolationPolicy
from magnetar.broker.resources.resources import Resources
from magnetar.errors import InvalidPolicyError, ResourceMissingError
from magnetar.names import NamespaceName

log = logging.getLogger(__name__)


class IsolationRules:
    def __init__(self, resources: Resources, cluster: str) -> None:
        self._resources = resources
        self._cluster = cluster
        self._complaints: dict[str, str] = {}

    async def read(self, namespaces: Iterable[NamespaceName]) -> Isolation:
        """Returns the rules, with the groups of these namespaces: one that is placed, and those that are served."""
        policies = {}
        for name, document in (await self._resources.isolation_policies.all(self._cluster)).items():
            try:
                policies[name] = IsolationPolicy.from_json(document)
            except InvalidPolicyError as error:
                self._complain(name, str(error))
        groups = {}
        for namespace in namespaces:
            group = await self._group_of(namespace)
            if group is not None:
                groups[str(namespace)] = group
        return Isolation(policies, groups, await self._domains() if groups else {})

    async def has_group(self, namespace: NamespaceName) -> bool:
        return await self._group_of(namespace) is not None

    async def _group_of(self, namespace: NamespaceName) -> str | None:
        try:
            return await self._resources.namespaces.anti_affinity_group(namespace)
        except ResourceMissingError:
            return None  # It is being deleted.

    async def _domains(self) -> dict[str, str]:
        found = await self._resources.failure_domains.all(self._cluster)
        return {broker: domain for domain, brokers in found.items() for broker in brokers}

    def _complain(self, name: str, why: str) -> None:
        if self._complaints.get(name) != why:
            self._complaints[name] = why
            log.error("an isolation policy is not followed", extra={"policy": name, "why": why})
