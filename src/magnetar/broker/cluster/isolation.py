"""Isolation: which brokers may serve a namespace, by isolation policies, anti-affinity groups and failure domains.

Purpose:   A tenant's traffic can be kept on brokers of its own, and namespaces that back each other up can be kept
           apart. The leader asks `candidates` before it chooses a broker for a bundle.
Format:    Isolation policies are Pulsar's NamespaceIsolationData, by name, in one document for each cluster. Namespaces
           and brokers are given as regular expressions that match a whole name; for a broker that is its host without
           the port.
Order:     A namespace with a policy is served by the policy's primary brokers. The secondary ones join when too few
           primary ones are left. Any other namespace is served by brokers that are not primary for a policy. Of these,
           an anti-affinity group uses the failure domains, and in them the brokers, that serve the fewest of its
           namespaces.
Read next: placement.py
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from magnetar.errors import InvalidPolicyError

_MIN_AVAILABLE = "min_available"
_UNLOAD_SCOPES = ("all_matching", "none", "changed")
_NO_DOMAIN = "default"
"""The failure domain of brokers that are in none."""


def host_of(broker_id: str) -> str:
    """Returns the part of `host:port` that isolation policies match."""
    return broker_id.rpartition(":")[0]


@dataclass(frozen=True, slots=True)
class IsolationPolicy:
    namespaces: tuple[re.Pattern[str], ...]
    primary: tuple[re.Pattern[str], ...]
    secondary: tuple[re.Pattern[str], ...]
    primaries_min: int
    """With fewer primary brokers than this, the secondary ones serve, too."""
    moves: bool = True
    """Whether bundles that are served now are moved to the brokers of the policy."""

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """InvalidPolicyError names the field that is wrong."""
        if not isinstance(value, dict):
            raise InvalidPolicyError(f"an isolation policy is a JSON object, not {value!r}")
        namespaces, primary = _patterns(value, "namespaces"), _patterns(value, "primary")
        if not namespaces or not primary:
            raise InvalidPolicyError("an isolation policy needs `namespaces` and `primary`, each with a name or more")
        return cls(namespaces, primary, _patterns(value, "secondary"), _primaries_min(value), _moves(value))

    def is_for(self, namespace: str) -> bool:
        return _matches(self.namespaces, namespace)

    def is_primary(self, broker_id: str) -> bool:
        return _matches(self.primary, host_of(broker_id))

    def is_secondary(self, broker_id: str) -> bool:
        return not self.is_primary(broker_id) and _matches(self.secondary, host_of(broker_id))

    def candidates(self, brokers: Iterable[str]) -> list[str]:
        available = list(brokers)
        primary = [broker for broker in available if self.is_primary(broker)]
        if len(primary) >= self.primaries_min:
            return primary
        return primary + [broker for broker in available if self.is_secondary(broker)]


@dataclass(frozen=True, slots=True)
class Isolation:
    """The rules of one cluster, as they are stored now."""

    policies: Mapping[str, IsolationPolicy]
    groups: Mapping[str, str]
    """Namespace → its anti-affinity group; namespaces without one are absent."""
    domains: Mapping[str, str]
    """Broker id → its failure domain."""

    def candidates(self, namespace: str, brokers: Collection[str], serves: Mapping[str, Collection[str]]) -> list[str]:
        """Returns the brokers that may serve the namespace, in their given order; none if the rules exclude all.

        `serves` has the namespaces of which each broker has a bundle.
        """
        allowed = self.allowed(namespace, brokers)
        group = self.groups.get(namespace)
        if group is None:
            return allowed
        counts = {broker: self._count(group, namespace, serves.get(broker, ())) for broker in allowed}
        of_domain: Counter[str] = Counter()
        for broker, count in counts.items():
            of_domain[self._domain(broker)] += count
        calmest = min(of_domain.values(), default=0)
        left = [broker for broker in allowed if of_domain[self._domain(broker)] == calmest]
        fewest = min((counts[broker] for broker in left), default=0)
        return [broker for broker in left if counts[broker] == fewest]

    def policy_of(self, namespace: str) -> IsolationPolicy | None:
        return next((policy for policy in self.policies.values() if policy.is_for(namespace)), None)

    def moves(self, namespace: str) -> bool:
        """Whether bundles of the namespace leave brokers that are not allowed."""
        policy = self.policy_of(namespace)
        return policy is None or policy.moves

    def allowed(self, namespace: str, brokers: Iterable[str]) -> list[str]:
        """Returns the brokers that the policies allow, whatever groups and domains prefer."""
        policy = self.policy_of(namespace)
        if policy is not None:
            return policy.candidates(brokers)
        return [broker for broker in brokers if not any(each.is_primary(broker) for each in self.policies.values())]

    def _count(self, group: str, namespace: str, served: Iterable[str]) -> int:
        """Returns how many other namespaces of the group are among those that a broker serves."""
        return sum(other != namespace and self.groups.get(other) == group for other in served)

    def _domain(self, broker: str) -> str:
        return self.domains.get(broker, _NO_DOMAIN)


def _matches(patterns: Iterable[re.Pattern[str]], name: str) -> bool:
    return any(pattern.fullmatch(name) for pattern in patterns)


def _patterns(value: Mapping[str, Any], field: str) -> tuple[re.Pattern[str], ...]:
    given = value.get(field) or []
    if not isinstance(given, list) or not all(isinstance(text, str) for text in given):
        raise InvalidPolicyError(f"`{field}` of an isolation policy is a list of regular expressions, not {given!r}")
    try:
        return tuple(re.compile(text) for text in given if text)
    except re.error as error:
        raise InvalidPolicyError(
            f"`{field}` of an isolation policy: {error.pattern!r} is no regular expression: {error}"
        ) from None


def _moves(value: Mapping[str, Any]) -> bool:
    scope = value.get("unload_scope")
    if scope is not None and scope not in _UNLOAD_SCOPES:
        raise InvalidPolicyError(f"`unload_scope` of an isolation policy is {', '.join(_UNLOAD_SCOPES)}, not {scope!r}")
    return scope != "none"


def _primaries_min(value: Mapping[str, Any]) -> int:
    failover = value.get("auto_failover_policy") or {}
    kind, parameters = failover.get("policy_type", _MIN_AVAILABLE), failover.get("parameters") or {}
    if kind != _MIN_AVAILABLE:
        raise InvalidPolicyError(f"`auto_failover_policy.policy_type` is {_MIN_AVAILABLE!r}, not {kind!r}")
    try:
        return max(0, int(parameters.get("min_limit", 1)))
    except (TypeError, ValueError):
        raise InvalidPolicyError(
            f"`min_limit` of an isolation policy is a number, not {parameters['min_limit']!r}"
        ) from None
