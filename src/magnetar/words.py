"""Numbers in sentences that people read."""

from __future__ import annotations


def counted(count: int, one: str, many: str = "") -> str:
    """`1 entry`, `2 entries`, `12,000 messages`. Without `many`, the plural is `one` with an s."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def at_least(text: str, *, is_exact: bool) -> str:
    """`17 messages` if that is exact, otherwise `at least 17 messages`."""
    return text if is_exact else f"at least {text}"
