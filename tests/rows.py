"""One test for a whole table: a family of cases that differ in a value, and not in what they are about.

    @every_row("sizes", ALL_SIZES, ids=str)
    def test_entries_are_dealt_round_the_ensemble(sizes: QuorumSizes) -> None: ...

It is written as `pytest.mark.parametrize` is, and is one case. All rows are run; the failure lists every broken one.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

Test = Callable[..., None]


def every_row(
    names: str | Sequence[str],
    rows: Iterable[Any],
    *,
    ids: Callable[[Any], object] | Iterable[str] | None = None,
) -> Callable[[Test], Test]:
    """The test takes these arguments and no others: what a fixture gives would be shared by all rows."""
    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    table = [row if len(names) > 1 else (row,) for row in rows]
    labels = _labels(table, ids)
    assert table, "a test of no rows would prove nothing"

    def decorate(test: Test) -> Test:
        assert sorted(inspect.signature(test).parameters) == sorted(names), f"{test.__name__} takes other arguments"

        @functools.wraps(test)
        def run_all() -> None:
            broken: list[Exception] = []
            for label, row in zip(labels, table, strict=True):
                try:
                    test(**dict(zip(names, row, strict=True)))
                except Exception as error:
                    error.add_note(f"row {label}")
                    broken.append(error)
            if broken:
                raise ExceptionGroup(f"{len(broken)} of {len(table)} rows are broken", broken)

        del run_all.__wrapped__  # type: ignore[attr-defined]  # pytest would ask for the arguments.
        return run_all

    return decorate


def _labels(table: Sequence[Sequence[Any]], ids: Callable[[Any], object] | Iterable[str] | None) -> list[str]:
    if ids is None:
        return [repr(row) for row in table]
    if callable(ids):
        return ["-".join(str(ids(value)) for value in row) for row in table]
    return list(ids)
