"""Our values as the plain fields that the Java side speaks, and back. Bytes are base64."""

from __future__ import annotations

from base64 import b64decode, b64encode
from dataclasses import replace
from typing import Any

from magnetar.ids import BookieId, EntryId, LedgerId
from magnetar.metadata.bookkeeper.cookies import Cookie
from magnetar.metadata.bookkeeper.ledger_metadata import (
    NO_TOKEN,
    UNKNOWN_TIME,
    FormatVersion,
    Fragment,
    LedgerMetadata,
    LedgerState,
)
from magnetar.metadata.bookkeeper.service_info import BookieServiceInfo, Endpoint
from magnetar.wire.bookkeeper.digests import DigestType

_APACHE_NAMES = {DigestType.HMAC: "MAC"}  # The client's name; the stored form says HMAC, too.

Fields = dict[str, Any]


def text(value: bytes) -> str:
    return b64encode(value).decode()


def ledger_fields(m: LedgerMetadata) -> Fields:
    return {
        "ledgerId": m.ledger_id,
        "formatVersion": int(m.format_version),
        "ensembleSize": m.ensemble_size,
        "writeQuorum": m.write_quorum,
        "ackQuorum": m.ack_quorum,
        "state": m.state.name,
        "lastEntryId": m.last_entry_id,
        "length": m.length,
        "digestType": m.digest_type and _APACHE_NAMES.get(m.digest_type, m.digest_type.name),
        "password": None if m.password is None else text(m.password),
        "ctime": m.ctime_ms,
        "storesCtime": m.stores_ctime,
        "cToken": m.c_token,
        "customMetadata": {key: text(value) for key, value in m.custom_metadata.items()},
        "fragments": [[f.first_entry_id, list(f.ensemble)] for f in m.fragments],
    }


def _digest_type(apache_name: str) -> DigestType:
    return next((ours for ours, name in _APACHE_NAMES.items() if name == apache_name), None) or DigestType[apache_name]


def ledger_from(fields: Fields) -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id=LedgerId(fields["ledgerId"]),
        format_version=FormatVersion(fields["formatVersion"]),
        ensemble_size=fields["ensembleSize"],
        write_quorum=fields["writeQuorum"],
        ack_quorum=fields["ackQuorum"],
        state=LedgerState[fields["state"]],
        last_entry_id=EntryId(fields["lastEntryId"]),
        length=fields["length"],
        digest_type=_digest_type(fields["digestType"]) if fields["digestType"] else None,
        password=None if fields["password"] is None else b64decode(fields["password"]),
        ctime_ms=fields["ctime"],
        stores_ctime=fields["storesCtime"],
        c_token=fields["cToken"],
        custom_metadata={key: b64decode(value) for key, value in fields["customMetadata"].items()},
        fragments=tuple(
            Fragment(EntryId(first), tuple(map(BookieId, members))) for first, members in fields["fragments"]
        ),
    )


def as_stored(m: LedgerMetadata, node_ctime: int) -> LedgerMetadata:
    """What is left of it after a round through its own format version."""
    if m.format_version is FormatVersion.TEXT:
        return replace(
            m,
            ack_quorum=m.write_quorum,
            digest_type=None,
            password=None,
            ctime_ms=UNKNOWN_TIME,
            stores_ctime=False,
            c_token=NO_TOKEN,
            custom_metadata={},
        )
    token = m.c_token if m.format_version is FormatVersion.BINARY_PROTOBUF else NO_TOKEN
    return replace(m, ctime_ms=m.ctime_ms if m.stores_ctime else node_ctime, c_token=token)


def cookie_fields(c: Cookie) -> Fields:
    """As the Java side takes them: lists of directories."""
    return {
        "layoutVersion": c.layout_version,
        "bookieId": c.bookie_id,
        "journalDirs": list(c.journal_dirs),
        "ledgerDirs": list(c.ledger_dirs),
        "indexDirs": None if c.index_dirs is None else list(c.index_dirs),
        "instanceId": c.instance_id,
    }


def cookie_texts(c: Cookie) -> Fields:
    """As Apache's class keeps them: lists of directories joined."""
    return {
        **cookie_fields(c),
        "journalDirs": ",".join(c.journal_dirs),
        "ledgerDirs": "\t".join([str(len(c.ledger_dirs)), *c.ledger_dirs]),
        "indexDirs": None if c.index_dirs is None else "\t".join([str(len(c.index_dirs)), *c.index_dirs]),
    }


def service_info_fields(info: BookieServiceInfo) -> Fields:
    endpoints = [
        {
            "id": e.id,
            "port": e.port,
            "host": e.host,
            "protocol": e.protocol,
            "auth": list(e.auth),
            "extensions": list(e.extensions),
        }
        for e in info.endpoints
    ]
    return {"endpoints": endpoints, "properties": dict(info.properties)}


def service_info_from(fields: Fields) -> BookieServiceInfo:
    endpoints = [
        Endpoint(**{**e, "auth": tuple(e["auth"]), "extensions": tuple(e["extensions"])}) for e in fields["endpoints"]
    ]
    return BookieServiceInfo(tuple(endpoints), fields["properties"])
