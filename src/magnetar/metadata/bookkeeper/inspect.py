"""Describes a node's value by its path, for operators who look into a store.

Failure:   a bad value is never an error here: the description says what is wrong with it.
Limits:    a ledger's password is shown only when asked for; otherwise its length.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from magnetar.errors import MalformedMetadataError
from magnetar.ids import BookieId
from magnetar.metadata.bookkeeper.cluster import decode_instance_id, decode_layout
from magnetar.metadata.bookkeeper.cookies import decode_cookie
from magnetar.metadata.bookkeeper.ledger_codec import decode
from magnetar.metadata.bookkeeper.ledger_metadata import UNKNOWN_TIME, LedgerMetadata
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.bookkeeper.service_info import decode_service_info
from magnetar.metadata.paths import ROOT, name_of, parent_of
from magnetar.metadata.store import Node

Document: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Description:
    kind: str
    """One of: ledger, cookie, service info, layout, instance id, text, binary, empty."""
    content: Document
    problem: str | None = None
    """What is wrong with the value, if it is not valid for this path."""


def describe(paths: BookKeeperPaths, path: str, node: Node, *, show_password: bool = False) -> Description:
    kind = kind_of(paths, path)
    if kind is None:
        return _describe_raw(node.value)
    try:
        return Description(kind, _decoded(kind, paths, path, node, show_password))
    except MalformedMetadataError as error:
        return Description(kind, {}, str(error))


def _decoded(kind: str, paths: BookKeeperPaths, path: str, node: Node, show_password: bool) -> Document:
    match kind:
        case "ledger":
            metadata = decode(paths.ledger_id_of(path), node.value, node_created_ms=node.created_ms)
            return ledger_document(metadata, show_password=show_password)
        case "cookie":
            return _cookie_document(node.value)
        case "service info":
            return _service_info_document(BookieId(name_of(path)), node.value)
        case "layout":
            layout = decode_layout(node.value)
            return {"manager": layout.manager, "manager_version": layout.manager_version}
        case _:
            return {"instance_id": decode_instance_id(node.value)}


def kind_of(paths: BookKeeperPaths, path: str) -> str | None:
    """Returns the kind of value at this path; None for nodes whose value has no meaning to us."""
    if path in (known := {paths.layout: "layout", paths.instance_id: "instance id"}):
        return known[path]
    parent = ROOT if path == ROOT else parent_of(path)
    if parent == paths.cookies:
        return "cookie"
    if parent in (paths.available, paths.readonly) and path != paths.readonly:
        return "service info"
    try:
        paths.ledger_id_of(path)
    except MalformedMetadataError:
        return None
    return "ledger"


def ledger_document(m: LedgerMetadata, *, show_password: bool = False) -> Document:
    return {
        "ledger_id": m.ledger_id,
        "state": m.state.name,
        "ensemble_size": m.ensemble_size,
        "write_quorum": m.write_quorum,
        "ack_quorum": m.ack_quorum,
        "last_entry_id": m.last_entry_id if m.is_closed else None,
        "length": m.length if m.is_closed else None,
        "digest_type": m.digest_type.name if m.digest_type else None,
        "password": _password(m.password, show_password),
        "ctime_ms": None if m.ctime_ms == UNKNOWN_TIME else m.ctime_ms,
        "custom_metadata": {key: readable(value) for key, value in m.custom_metadata.items()},
        "c_token": m.c_token,
        "format_version": int(m.format_version),
        "fragments": _fragments(m),
    }


def _fragments(m: LedgerMetadata) -> list[Document]:
    ends = [f.first_entry_id - 1 for f in m.fragments[1:]]
    last = m.last_entry_id if m.is_closed else None
    return [
        {"first_entry_id": f.first_entry_id, "last_entry_id": end, "bookies": list(f.ensemble)}
        for f, end in zip(m.fragments, [*ends, last], strict=True)
    ]


def _password(password: bytes | None, show: bool) -> str | None:
    if password is None:
        return None
    return readable(password) if show else f"({len(password)} bytes)"


def _cookie_document(value: bytes) -> Document:
    c = decode_cookie(value)
    return {
        "bookie_id": c.bookie_id,
        "journal_dirs": list(c.journal_dirs),
        "ledger_dirs": list(c.ledger_dirs),
        "index_dirs": list(c.index_dirs or c.ledger_dirs),
        "instance_id": c.instance_id,
        "layout_version": c.layout_version,
    }


def _service_info_document(bookie: BookieId, value: bytes) -> Document:
    info = decode_service_info(bookie, value)
    endpoints = [asdict(e) | {"auth": list(e.auth), "extensions": list(e.extensions)} for e in info.endpoints]
    return {"endpoints": endpoints, "properties": dict(info.properties)}


def _describe_raw(value: bytes) -> Description:
    if not value:
        return Description("empty", {})
    text = readable(value)
    return Description("binary" if text.startswith(HEX_PREFIX) else "text", {"value": text})


HEX_PREFIX = "0x"


def readable(value: bytes) -> str:
    """Returns text if it has no control characters (line ends and tabs aside), otherwise hexadecimal digits."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return HEX_PREFIX + value.hex()
    plain = text.replace("\n", "").replace("\t", "")
    return text if not plain or plain.isprintable() else HEX_PREFIX + value.hex()
