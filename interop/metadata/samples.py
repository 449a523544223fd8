"""Values that between them use every field, every version and every awkward byte."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from magnetar.ids import BookieId, EntryId, LedgerId
from magnetar.metadata.bookkeeper.cookies import Cookie
from magnetar.metadata.bookkeeper.ledger_metadata import (
    FormatVersion,
    Fragment,
    LedgerMetadata,
    LedgerState,
)
from magnetar.metadata.bookkeeper.service_info import BookieServiceInfo, Endpoint
from magnetar.wire.bookkeeper.digests import DigestType

NODE_CTIME = 1_700_000_000_123
ALL_BYTES = bytes(range(256))
LEDGER_IDS = [LedgerId(n) for n in (0, 1, 9_999, 10_000, 2**31 - 2, 2**31 - 1, 2**31, 2**32 + 5, 2**53 + 1, 2**63 - 1)]


def fragments(count: int, size: int = 3) -> tuple[Fragment, ...]:
    """Overlapping ensembles, as they come from one bookie being replaced after the other."""
    return tuple(
        Fragment(EntryId(1_000_003 * n), tuple(BookieId(f"bookie-{n + k}.example:3181") for k in range(size)))
        for n in range(count)
    )


FULL = LedgerMetadata(
    ledger_id=LedgerId(4_711),
    ensemble_size=3,
    write_quorum=3,
    ack_quorum=2,
    fragments=fragments(3),
    state=LedgerState.CLOSED,
    last_entry_id=EntryId(2_345_678),
    length=9_876_543_210,
    digest_type=DigestType.CRC32C,
    password=b"secret",
    ctime_ms=1_650_000_000_001,
    stores_ctime=True,
    custom_metadata={"application": b"pulsar", "component": b"managed-ledger", "pulsar/managed-ledger": b"t/n/topic"},
    c_token=2**62 + 12_345,
)


def ledgers() -> Iterator[tuple[str, LedgerMetadata]]:
    """Each with a name that says what is particular about it."""
    for version, state in product(FormatVersion, LedgerState):
        closed = state is LedgerState.CLOSED
        yield (
            f"version {version} {state.name}",
            replace(
                FULL,
                format_version=version,
                state=state,
                last_entry_id=FULL.last_entry_id if closed else EntryId(-1),
                length=FULL.length if closed else 0,
            ),
        )
    for version, digest in product((FormatVersion.TEXT_PROTOBUF, FormatVersion.BINARY_PROTOBUF), DigestType):
        yield f"version {version} digest {digest.name}", replace(FULL, format_version=version, digest_type=digest)
    for version in (FormatVersion.TEXT_PROTOBUF, FormatVersion.BINARY_PROTOBUF):
        for name, change in _variations().items():
            yield f"version {version} {name}", replace(FULL, format_version=version, **change)
    for ledger_id in LEDGER_IDS:
        yield f"ledger id {ledger_id}", replace(FULL, ledger_id=ledger_id)


def _variations() -> dict[str, dict[str, Any]]:
    return {
        "empty password": {"password": b""},
        "password of all bytes": {"password": ALL_BYTES},
        "no custom metadata": {"custom_metadata": {}},
        "custom metadata of all bytes": {"custom_metadata": {'ключ/鍵\t"quoted"\n\\': ALL_BYTES, "": b"", "e": b""}},
        "creation time not stored": {"stores_ctime": False, "ctime_ms": NODE_CTIME},
        "closed without entries": {"last_entry_id": EntryId(-1), "length": 0, "fragments": fragments(1)},
        "one bookie": {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1, "fragments": fragments(2, 1)},
        "many fragments": {"fragments": fragments(50, 5), "ensemble_size": 5},
        "largest numbers": {"last_entry_id": EntryId(2**63 - 1), "length": 2**63 - 1, "ctime_ms": 2**63 - 1},
        "bookie ids that are no addresses": {
            "fragments": (Fragment(EntryId(0), (BookieId("rack-1_a"), BookieId("B.2"), BookieId("a@[b]"))),)
        },
    }


COOKIES = {
    "host and port": Cookie(
        bookie_id=BookieId("127.0.0.1:3181"),
        journal_dirs=("/data/journal",),
        ledger_dirs=("/data/ledgers",),
        instance_id="9f0b4d3c-0f2c-4a60-8e9b-3f4f8f2f1c11",
    ),
    "many directories": Cookie(
        bookie_id=BookieId("bookie-1.example:3181"),
        journal_dirs=("/j1", "/j2"),
        ledger_dirs=("/l 1", '/l"2"', "/ü/3"),
        index_dirs=("/i1", "/i2"),
        instance_id="any text",
    ),
    "without instance id": Cookie(bookie_id=BookieId("bookie-a"), journal_dirs=("/j",), ledger_dirs=("/l",)),
}

SERVICE_INFOS = {
    "nothing but an endpoint": BookieServiceInfo(
        (Endpoint(id="bookie", host="10.0.0.7", port=3181, protocol="bookie-rpc"),)
    ),
    "everything": BookieServiceInfo(
        (
            Endpoint(
                id="bookie", host="b.example", port=3181, protocol="bookie-rpc", auth=("sasl", "tls"), extensions=("x",)
            ),
            Endpoint(id="http", host="b.example", port=8000, protocol="http"),
        ),
        {"autorecovery.enabled": "true", "ключ": "значение", "empty": ""},
    ),
}
