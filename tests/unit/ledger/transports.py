"""How the clients of a test reach the bookies: by sockets, or, as in `magnetar standalone`, without.

Suite:     the in-process transport must pass what sockets pass. A module of tests that says
           `pytestmark = pytest.mark.usefixtures("transport")` runs once on each (conftest.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from magnetar.ids import BookieId
from magnetar.ledger.local_transport import Accept
from magnetar.testing.bookie_cluster import BookieCluster

TRANSPORTS: Final = ("sockets", "in process")

_chosen = [TRANSPORTS[0]]


@contextmanager
def chosen(transport: str) -> Iterator[None]:
    """For the worlds that are made meanwhile."""
    _chosen.append(transport)
    try:
        yield
    finally:
        _chosen.pop()


def local_of(cluster: BookieCluster) -> Mapping[BookieId, Accept] | None:
    """What a client of this cluster is given as `local`."""
    return cluster.local if _chosen[-1] == "in process" else None
