"""Bundles: the ranges of hashes into which a namespace is divided; each has one owner.

Format:    The boundaries are `0x00000000`, …, `0xffffffff`, ascending; a bundle begins with one and ends before the
           next, the last one includes its end. The hash is the unsigned CRC-32 of the topic's full name
           (`TopicName.bundle_hash`).
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

from magnetar.errors import InvalidNameError, InvalidPolicyError, MalformedMetadataError
from magnetar.names import NamespaceName, TopicName

HASHES = 2**32
BUNDLES_MAX = 100_000  # Each may have an owner, which is a node: a namespace with more would be a mistake.


@dataclass(frozen=True, slots=True)
class Bundle:
    """Reaches from `first` up to `last`; `last` itself is a part of the last bundle only."""

    first: int
    last: int

    def __contains__(self, topic_hash: int) -> bool:
        return self.first <= topic_hash < self.last or topic_hash == self.last == HASHES - 1

    def __str__(self) -> str:
        return f"{_text(self.first)}_{_text(self.last)}"

    @classmethod
    def parse(cls, text: str) -> Self:
        first, _, last = text.partition("_")
        try:
            bundle = cls(int(first, 16), int(last, 16))
        except ValueError:
            raise InvalidNameError(f"{text!r} is not a bundle, such as 0x00000000_0x40000000") from None
        if not 0 <= bundle.first < bundle.last < HASHES:
            raise InvalidNameError(f"{text!r} is not a bundle: its end is not after its beginning")
        return bundle


@dataclass(frozen=True, slots=True)
class NamespaceBundle:
    """A bundle with its namespace: what one broker owns. Its text is `tenant/namespace/0x00000000_0x40000000`."""

    namespace: NamespaceName
    bundle: Bundle

    def __contains__(self, topic: TopicName) -> bool:
        return topic.namespace == self.namespace and topic.bundle_hash in self.bundle

    def __str__(self) -> str:
        return f"{self.namespace}/{self.bundle}"

    @classmethod
    def parse(cls, text: str) -> Self:
        namespace, _, bundle = text.rpartition("/")
        return cls(NamespaceName.parse(namespace), Bundle.parse(bundle))


@dataclass(frozen=True, slots=True)
class Bundles:
    boundaries: tuple[int, ...]

    def __post_init__(self) -> None:
        assert _are_right(self.boundaries)

    @classmethod
    def equal(cls, count: int) -> Self:
        """Returns this number of bundles of the same size, except for the remainder."""
        if not 0 < count <= BUNDLES_MAX:
            raise InvalidPolicyError(f"a namespace has between 1 and {BUNDLES_MAX:_} bundles, not {count}")
        size = HASHES // count
        return cls((*(size * index for index in range(count)), HASHES - 1))

    @classmethod
    def from_json(cls, value: Any) -> Self:
        try:
            boundaries = tuple(int(text, 16) for text in value["boundaries"])
        except (TypeError, KeyError, ValueError):
            raise MalformedMetadataError(f"{value!r} are not the bundles of a namespace") from None
        if not _are_right(boundaries):
            raise MalformedMetadataError(
                f"boundaries of bundles ascend from 0x00000000 to 0xffffffff, and {value['boundaries']!r} do not"
            )
        return cls(boundaries)

    def to_json(self) -> dict[str, Any]:
        return {"boundaries": [_text(boundary) for boundary in self.boundaries], "numBundles": len(self)}

    def __len__(self) -> int:
        return len(self.boundaries) - 1

    def all(self) -> list[Bundle]:
        return [Bundle(first, last) for first, last in pairwise(self.boundaries)]

    def of(self, topic: TopicName) -> Bundle:
        return self.of_hash(topic.bundle_hash)

    def of_hash(self, topic_hash: int) -> Bundle:
        index = min(bisect.bisect_right(self.boundaries, topic_hash), len(self)) - 1
        return Bundle(self.boundaries[index], self.boundaries[index + 1])

    def split(self, bundle: Bundle, at: int) -> Self:
        """Returns bundles in which this one is divided; the second half begins at this hash."""
        if bundle not in self.all():
            raise InvalidPolicyError(f"{bundle} is not a bundle of this namespace")
        if not bundle.first < at < bundle.last:
            raise InvalidPolicyError(f"{_text(at)} is not inside the bundle {bundle}")
        return type(self)(tuple(sorted((*self.boundaries, at))))

    def merge(self, bundle: Bundle) -> Self:
        """Returns bundles in which this one and the next one are one."""
        if bundle not in self.all() or bundle.last == HASHES - 1:
            raise InvalidPolicyError(f"{bundle} is not a bundle of this namespace that another one follows")
        return type(self)(tuple(boundary for boundary in self.boundaries if boundary != bundle.last))


def _are_right(boundaries: tuple[int, ...]) -> bool:
    is_whole = len(boundaries) >= 2 and boundaries[0] == 0 and boundaries[-1] == HASHES - 1
    return is_whole and all(low < high for low, high in pairwise(boundaries))


def _text(boundary: int) -> str:
    return f"0x{boundary:08x}"
