"""What it takes to open a ledger's entries: its id, its digest, and the key that bookies compare.

The digest is the ledger's own. The caller's choice counts only for metadata without one.

Failure:   All but the oldest releases store the password in the metadata, so a wrong one is found here, before a bookie
           is asked. That matters: a bookie that never saw the ledger accepts the first key that it receives.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from magnetar.errors import WrongPasswordError
from magnetar.ids import LedgerId
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.wire.bookkeeper.digests import DigestType, EntryDigest, entry_digest, master_key


@dataclass(frozen=True, slots=True)
class LedgerKeys:
    ledger_id: LedgerId
    digest: EntryDigest
    master_key: bytes = field(repr=False)


def ledger_keys(metadata: LedgerMetadata, password: bytes, default_digest: DigestType) -> LedgerKeys:
    """Raises WrongPasswordError if the metadata has another password."""
    if metadata.password is not None and metadata.password != password:
        raise wrong_password(metadata.ledger_id)
    digest = entry_digest(metadata.digest_type or default_digest, password)
    return LedgerKeys(metadata.ledger_id, digest, master_key(password))


def wrong_password(ledger_id: int) -> WrongPasswordError:
    return WrongPasswordError(
        f"ledger {ledger_id} was created with another password: give the one that its writer used"
    )
