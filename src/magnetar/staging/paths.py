"""The paths of staging's records: `/magnetar/sinks/<owner>`, with its intents and its register of staged ledgers.

Format:    the register has a node for every staged ledger, made before the ledger is, and deleted after it. The search
           for unwanted ledgers reads it: to look at all ledgers of a cluster takes as many reads as there are ledgers.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote, unquote

from magnetar.errors import StagingError
from magnetar.staging.records import EPOCH_MAX

SINKS: Final = "/magnetar/sinks"
OWNER_BYTES_MAX: Final = 512
"""The largest size of an owner's name in a path: part of every register's path and of a topic's property."""
_REGISTER: Final = "staged"
_EPOCH = re.compile(r"[0-9]{10}")


def owner_path(owner: str) -> str:
    """Raises StagingError for a name that cannot be an owner's."""
    encoded = quote(owner, safe="").replace(".", "%2E")  # A name of dots alone would be a relative path.
    if not owner or len(encoded) > OWNER_BYTES_MAX:
        raise StagingError(f"an owner's name has 1 to {OWNER_BYTES_MAX} bytes when encoded, not {len(encoded)}")
    return f"{SINKS}/{encoded}"


def owner_of(name: str) -> str:
    """Returns the owner of a child of SINKS."""
    return unquote(name)


def intent_path(owner: str, epoch: int) -> str:
    if not 0 <= epoch <= EPOCH_MAX:
        raise StagingError(f"an epoch is a number from 0 to {EPOCH_MAX}, not {epoch}")
    return f"{owner_path(owner)}/{epoch:010d}"


def epochs_in(children: list[str]) -> list[int]:
    """Returns the epochs of those children of an owner that are intents, oldest first."""
    return sorted(int(name) for name in children if _EPOCH.fullmatch(name))


def register_path(owner: str) -> str:
    return f"{owner_path(owner)}/{_REGISTER}"


def registration_path(owner: str, ledger_id: int) -> str:
    return f"{register_path(owner)}/{ledger_id}"
