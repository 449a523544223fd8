r"""Version 1 of ledger metadata: lines of text.

Format:    write quorum LF ensemble size LF length LF
           per fragment: first entry TAB bookie TAB bookie … LF
           closed: last entry TAB "CLOSED"; in recovery: "-102" TAB "CLOSED"; open: nothing
Limits:    it has no ack quorum (which is then the write quorum), digest type, password, creation time, custom metadata
           and token.
"""

from __future__ import annotations

import re
from typing import Final

from magnetar.errors import MalformedMetadataError
from magnetar.ids import EntryId, LedgerId
from magnetar.metadata.bookkeeper.ledger_metadata import (
    NO_ENTRY,
    FormatVersion,
    Fragment,
    LedgerMetadata,
    LedgerState,
)
from magnetar.metadata.bookkeeper.paths import stored_bookie_id

_CLOSED: Final = "CLOSED"
_IN_RECOVERY_ENTRY: Final = -102
_NUMBER = re.compile(r"[+-]?[0-9]{1,19}")
_LINE_END = re.compile(r"\r\n|\r|\n")


def encode(metadata: LedgerMetadata) -> bytes:
    lines = [str(metadata.write_quorum), str(metadata.ensemble_size), str(metadata.length)]
    lines += ["\t".join((str(f.first_entry_id), *f.ensemble)) for f in metadata.fragments]
    match metadata.state:
        case LedgerState.CLOSED:
            lines.append(f"{metadata.last_entry_id}\t{_CLOSED}")
        case LedgerState.IN_RECOVERY:
            lines.append(f"{_IN_RECOVERY_ENTRY}\t{_CLOSED}")
        case LedgerState.OPEN:
            lines.append("")
    return "\n".join(lines).encode()


def decode(ledger_id: LedgerId, body: bytes, node_created_ms: int) -> LedgerMetadata:
    del node_created_ms  # Apache knows no creation time for a ledger of this version, not even the node's.
    lines = _LINE_END.split(body.decode())  # A UnicodeDecodeError is a ValueError: the caller names the ledger.
    if lines[-1] == "":
        lines.pop()
    if len(lines) < 3:
        raise MalformedMetadataError(f"{len(lines)} lines; the quorum, the ensemble size and the length take three")
    write_quorum, ensemble_size, length = map(_number, lines[:3])
    fragments: list[Fragment] = []
    state, last_entry_id = LedgerState.OPEN, NO_ENTRY
    for line in lines[3:]:
        first, *rest = line.rstrip("\t").split("\t")
        if rest[:1] == [_CLOSED]:
            state, last_entry_id = _end(_number(first))
            break  # Apache does not read what follows either.
        if not rest:
            raise MalformedMetadataError(f"a line is neither a fragment nor the end of the ledger: {line[:80]!r}")
        fragments.append(Fragment(EntryId(_number(first)), tuple(map(stored_bookie_id, rest))))
    return LedgerMetadata(
        ledger_id=ledger_id,
        ensemble_size=ensemble_size,
        write_quorum=write_quorum,
        ack_quorum=write_quorum,
        fragments=tuple(fragments),
        state=state,
        last_entry_id=last_entry_id,
        length=length if state is LedgerState.CLOSED else 0,
        format_version=FormatVersion.TEXT,
    )


def _end(last_entry: int) -> tuple[LedgerState, EntryId]:
    if last_entry == _IN_RECOVERY_ENTRY:
        return LedgerState.IN_RECOVERY, NO_ENTRY
    return LedgerState.CLOSED, EntryId(last_entry)


def _number(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise MalformedMetadataError(f"{text[:40]!r} is not a number")
    return int(text)
