"""Link: the way from one host to another, one direction; what it does to everything that goes along it."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Final


@dataclass(frozen=True, slots=True)
class LinkDelay:
    """Mostly between the first two; now and then, with no upper bound but the last, much longer."""

    min_s: float = 0.000_05
    max_s: float = 0.000_5
    tail: float = 0.01
    """Probability of the long kind."""
    tail_max_s: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.min_s <= self.max_s <= self.tail_max_s or not 0 <= self.tail <= 1:
            raise ValueError(f"{self} is not a delay: 0 <= min_s <= max_s <= tail_max_s, and tail is a probability")

    def draw(self, random: Random) -> float:
        delay = self.min_s + (self.max_s - self.min_s) * random.random()
        if self.tail and random.random() < self.tail:
            delay = min(self.tail_max_s, delay * random.paretovariate(0.7))
        return delay


@dataclass(frozen=True, slots=True)
class DatagramFaults:
    """Each write is one datagram, and each of these is a probability."""

    loss: float = 0.05
    duplicate: float = 0.05
    late: float = 0.1
    late_max_s: float = 0.3


@dataclass(slots=True)
class Link:
    is_blocked: bool = False
    delay: LinkDelay | None = None
    """None: the network's."""
    datagrams: DatagramFaults | None = None
    """For connections made from now on. None: TCP's promise."""


LOOPBACK: Final = LinkDelay(0.0, 0.000_02, tail=0.0, tail_max_s=0.000_02)


@dataclass(slots=True)
class NetworkCounters:
    connections: int = 0
    refused: int = 0
    resets: int = 0
    chunks: int = 0
    bytes: int = 0
    lost: int = field(default=0)
    """Datagrams."""
    duplicated: int = 0
    late: int = 0
