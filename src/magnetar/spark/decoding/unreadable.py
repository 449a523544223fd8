"""A value that is not what its schema says: raised with its row, and given the message's id where that is known."""

from __future__ import annotations


class UnreadableValueError(Exception):
    """Does not leave decoding/: typed_columns.py turns it into a MalformedEntryError that names the message."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row
        self.reason = reason
