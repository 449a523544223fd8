"""Where BookKeeper keeps its nodes below its root, and how a ledger id becomes a path and back.

Format:    short ids, below 2³¹ − 1: ten digits split 2-4-4:   /ledgers/00/0000/L0001
           long ids: nineteen digits split 3-4-4-4-4:          /ledgers/000/0000/0042/9496/L7296
Invariant: one id has one path. A path with an id in the other form is refused: no client would look for it there.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Final

from magnetar.errors import MalformedMetadataError, NoNodeError
from magnetar.ids import LEDGER_ID_MAX, BookieId, LedgerId
from magnetar.metadata.paths import check_path, join
from magnetar.metadata.store import MetadataStore

DEFAULT_ROOT: Final = "/ledgers"
SHORT_ID_LIMIT: Final = 2**31 - 1
"""The first id that has a long path; the short generator ends before it."""

_SHORT = re.compile(r"([0-9]{2})/([0-9]{4})/L([0-9]{4})")
_LONG = re.compile(r"([0-9]{3})/([0-9]{4})/([0-9]{4})/([0-9]{4})/L([0-9]{4})")
_SHORT_PARENT = re.compile(r"[0-9]{2}")
_LONG_PARENT = re.compile(r"[0-9]{3}")
_INNER = re.compile(r"[0-9]{4}")
_LEAF = re.compile(r"L[0-9]{4}")
_SHORT_DEPTH = 1  # Levels of four digits between the first level and the leaves.
_LONG_DEPTH = 3

# BookKeeper's own pattern has a range from ':' to '_' in it, so it takes more signs than a new bookie id may have.
_STORED_BOOKIE_ID = re.compile(r"[a-zA-Z0-9:-_.\-]+")


class BookKeeperPaths:
    """The nodes of one cluster. The root is absolute, `/ledgers` by default."""

    def __init__(self, root: str = DEFAULT_ROOT) -> None:
        check_path(root)
        self.root = root
        self.layout = join(root, "LAYOUT")
        self.instance_id = join(root, "INSTANCEID")
        self.available = join(root, "available")
        self.readonly = join(self.available, "readonly")
        self.cookies = join(root, "cookies")
        self.short_ids = join(root, "idgen")
        self.long_ids = join(root, "idgen-long")
        self.underreplication = join(root, "underreplication")

    def cookie(self, bookie: BookieId) -> str:
        return join(self.cookies, bookie)

    def registration(self, bookie: BookieId, *, readonly: bool = False) -> str:
        return join(self.readonly if readonly else self.available, bookie)

    def ledger(self, ledger_id: LedgerId) -> str:
        return join(self.root, ledger_path_below_root(ledger_id))

    def ledger_id_of(self, path: str) -> LedgerId:
        """Returns the id of a ledger's path; raises MalformedMetadataError for any other path."""
        prefix = join(self.root, "")
        if not path.startswith(prefix):
            raise MalformedMetadataError(f"{path!r} is not below the ledgers' root {self.root}")
        return parse_ledger_path(path[len(prefix) :])


def ledger_path_below_root(ledger_id: LedgerId) -> str:
    assert 0 <= ledger_id <= LEDGER_ID_MAX, ledger_id
    if ledger_id < SHORT_ID_LIMIT:
        d = f"{ledger_id:010d}"
        return f"{d[:2]}/{d[2:6]}/L{d[6:]}"
    d = f"{ledger_id:019d}"
    return f"{d[:3]}/{d[3:7]}/{d[7:11]}/{d[11:15]}/L{d[15:]}"


def parse_ledger_path(below_root: str) -> LedgerId:
    """Inverts `ledger_path_below_root`; raises MalformedMetadataError for a path that it would not make."""
    found = _SHORT.fullmatch(below_root) or _LONG.fullmatch(below_root)
    if found is None:
        raise MalformedMetadataError(
            f"{below_root!r} is not the path of a ledger (00/0000/L0000 or 000/0000/0000/0000/L0000)"
        )
    value = int("".join(found.groups()))
    if value > LEDGER_ID_MAX:
        raise MalformedMetadataError(f"{below_root!r} stands for {value}, beyond the largest ledger id {LEDGER_ID_MAX}")
    ledger_id = LedgerId(value)
    if ledger_path_below_root(ledger_id) != below_root:
        raise MalformedMetadataError(
            f"{below_root!r} is not where ledger {value} belongs: {ledger_path_below_root(ledger_id)}"
        )
    return ledger_id


def stored_bookie_id(value: str) -> BookieId:
    """Returns a bookie id that Apache's nodes may have written; raises ValueError for ids that they also refuse.

    It is more lenient than `ids.bookie_id`, which is for ids that we give out.
    """
    if not _STORED_BOOKIE_ID.fullmatch(value) or value.lower() == "readonly":
        raise ValueError(f"{value!r} is not a bookie id")
    return BookieId(value)


async def list_ledgers(store: MetadataStore, paths: BookKeeperPaths) -> AsyncIterator[LedgerId]:
    """Yields every ledger's id in rising order, reading directory by directory as the caller continues.

    The first level has two digits (short ids) or three (long ids); other names below the root (`available`, `cookies`,
    `idgen`, …) are not ledgers. Ledgers that are deleted during the listing are left out, new ones may be in it.
    """
    top = await store.children(paths.root)
    for parent_form, depth in ((_SHORT_PARENT, _SHORT_DEPTH), (_LONG_PARENT, _LONG_DEPTH)):
        for name in top:
            if parent_form.fullmatch(name):
                async for ledger_id in _list_below(store, paths, join(paths.root, name), depth):
                    yield ledger_id


async def _list_below(store: MetadataStore, paths: BookKeeperPaths, path: str, depth: int) -> AsyncIterator[LedgerId]:
    try:
        names = await store.children(path)
    except NoNodeError:  # Its last ledger was deleted, and the empty directory with it.
        return
    for name in names:
        if depth > 0 and _INNER.fullmatch(name):
            async for ledger_id in _list_below(store, paths, join(path, name), depth - 1):
                yield ledger_id
        elif depth == 0 and _LEAF.fullmatch(name):
            try:
                yield paths.ledger_id_of(join(path, name))
            except MalformedMetadataError:  # A ledger of this number has another path, so this is not a ledger.
                continue
