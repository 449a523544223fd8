"""Makes a query that gives other rows in another order each time it is evaluated, and still keeps the order per key.

Spark may evaluate a batch again after a failure, and most real queries do not give the same bytes twice: whatever is
published of two evaluations must be all of one, never some of each. Here every evaluation has an order of keys of its
own, so a mixture of two always loses some messages and doubles others.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

COLUMNS = "key binary, value binary"


def mix_keys(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: rows grouped by key, the groups in random order, each group as it came."""
    random = np.random.default_rng()
    for batch in batches:
        codes = batch.column("key").dictionary_encode().indices.to_numpy(zero_copy_only=False)
        places = random.permutation(len(codes) and int(codes.max()) + 1)
        yield batch.take(pa.array(np.argsort(places[codes], kind="stable")))
