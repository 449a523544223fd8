"""Disk weight: a random order in which bookies with more free disk tend to come first.

Weight:    free bytes, but never more than a multiple of the median: otherwise a new, empty bookie would get everything.
           Unknown and zero count as the least that is known: such a bookie is used, but seldom.
Order:     each bookie draws an exponential random number and divides it by its weight; ascending. The first of any part
           of the bookies is then a weighted choice from that part, so one draw serves a whole search.
Read next: placement.py
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from random import Random
from statistics import median

from magnetar.ids import BookieId


def random_order(
    bookies: Sequence[BookieId], free_bytes: Mapping[BookieId, int], random: Random, max_multiple: int | None
) -> list[BookieId]:
    """With `max_multiple` None every order is equally likely."""
    if len(bookies) < 2:
        return list(bookies)
    weights = disk_weights(bookies, free_bytes, max_multiple)
    draws = [-math.log(1.0 - random.random()) / weight for weight in weights]
    return [bookie for _, bookie in sorted(zip(draws, bookies, strict=True))]


def disk_weights(
    bookies: Sequence[BookieId], free_bytes: Mapping[BookieId, int], max_multiple: int | None
) -> list[float]:
    """One per bookie, above zero."""
    known = [free_bytes[bookie] for bookie in bookies if free_bytes.get(bookie, 0) > 0]
    if max_multiple is None or not known:
        return [1.0] * len(bookies)
    least, most = min(known), max_multiple * median(known)
    return [min(float(max(free_bytes.get(bookie, 0), least)), most) for bookie in bookies]
