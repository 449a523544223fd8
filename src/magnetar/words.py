"""Numbers in sentences that people read."""

from __future__ import annotations


def counted(count: int, one: str, many: str = "") -> str:
    """`1 entry`, `2 entries`, `12,000 messages`. Without `many`, the plural is `one` with an s."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"
