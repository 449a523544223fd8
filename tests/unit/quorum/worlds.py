"""Small worlds to test in: all quorum sizes up to six bookies, clusters with racks, and brute force over circles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import combinations, product

from magnetar.ids import BookieId
from magnetar.quorum.candidates import Candidates, RackTable, Topology
from magnetar.quorum.sizes import QuorumSizes

ENSEMBLE_MAX = 6
ALL_SIZES = [
    QuorumSizes(ensemble, write, ack)
    for ensemble in range(1, ENSEMBLE_MAX + 1)
    for write in range(1, ensemble + 1)
    for ack in range(1, write + 1)
]


def subsets(members: Sequence[int]) -> Iterator[frozenset[int]]:
    for size in range(len(members) + 1):
        yield from (frozenset(chosen) for chosen in combinations(members, size))


def holders(sizes: QuorumSizes, entry_id: int) -> frozenset[int]:
    """Dealt like cards: entry 0 begins at position 0, and each next entry begins one position further on."""
    begin = 0
    for _ in range(entry_id):
        begin = 0 if begin == sizes.ensemble - 1 else begin + 1
    dealt = []
    for _ in range(sizes.write):
        dealt.append(begin)
        begin = 0 if begin == sizes.ensemble - 1 else begin + 1
    return frozenset(dealt)


# --- clusters ---------------------------------------------------------------------------------------------------------


def cluster(
    racks: Mapping[str, int],
    *,
    read_only: Sequence[str] = (),
    quarantined: Sequence[str] = (),
    free_bytes: Mapping[BookieId, int] | None = None,
) -> Candidates:
    """Makes bookies for each rack: in rack `/a` they are named a-0, a-1, …; the rack "" means that it is not known."""
    names = {(rack, number): _name(rack, number) for rack, count in racks.items() for number in range(count)}
    table = RackTable.of((name, rack) for (rack, _), name in names.items())
    return Candidates.of(
        names.values(),
        read_only=[BookieId(name) for name in read_only],
        quarantined=[BookieId(name) for name in quarantined],
        free_bytes=free_bytes,
        topology=Topology(table),
    )


def _name(rack: str, number: int) -> BookieId:
    return BookieId(f"{rack.strip('/').replace('/', '.') or 'nowhere'}-{number}")


# --- brute force ------------------------------------------------------------------------------------------------------


@cache
def circle_exists(counts: tuple[int, ...], size: int, run: int, distinct: int, *, neighbours_differ: bool) -> bool:
    """Whether labels with these counts can be put around a circle as wanted. Tries all."""
    for labels in product(range(len(counts)), repeat=size):
        affordable = all(labels.count(label) <= count for label, count in enumerate(counts))
        if affordable and is_circle(labels, run, distinct, neighbours_differ=neighbours_differ):
            return True
    return False


def is_circle(labels: Sequence[object], run: int, distinct: int, *, neighbours_differ: bool) -> bool:
    twice = [*labels, *labels]
    runs_are_right = all(len(set(twice[start : start + run])) >= distinct for start in range(len(labels)))
    neighbours_are_right = len(labels) == 1 or all(twice[start] != twice[start + 1] for start in range(len(labels)))
    return runs_are_right and (neighbours_are_right or not neighbours_differ)
