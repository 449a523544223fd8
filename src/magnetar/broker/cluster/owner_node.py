"""The node of a bundle's owner: an ephemeral one, whose value names the broker.

Format:    `/namespace/{tenant}/{namespace}/0x00000000_0x40000000` holds what Pulsar calls NamespaceEphemeralData, in
           JSON: `brokerId`, `nativeUrl`, `nativeUrlTls`, `httpUrl`, `httpUrlTls`, `disabled`, `advertisedListeners`.
           Fields without a value are absent. `disabled`: the owner is giving the bundle up, and accepts no more topics.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from magnetar.broker.front_end import PULSAR
from magnetar.broker.ownership import BrokerAddress
from magnetar.broker.resources import paths
from magnetar.broker.resources.bundles import NamespaceBundle
from magnetar.broker.resources.documents import decode
from magnetar.errors import MalformedMetadataError


def owner_path(bundle: NamespaceBundle) -> str:
    return f"{paths.OWNERSHIP}/{bundle}"


def are_of_one_place(first: BrokerAddress, second: BrokerAddress) -> bool:
    """Whether only one process at a time can have these addresses. As Apache compares, without the listeners, which a
    restart may change."""
    return (first.broker_id, first.http_url, first.urls.get(PULSAR)) == (
        second.broker_id,
        second.http_url,
        second.urls.get(PULSAR),
    )


@dataclass(frozen=True, slots=True)
class OwnerNode:
    address: BrokerAddress
    is_disabled: bool = False

    def encode(self) -> bytes:
        address = self.address
        value: dict[str, Any] = {"brokerId": address.broker_id}
        if PULSAR in address.urls:
            value["nativeUrl"] = address.urls[PULSAR]
        value |= {"httpUrl": address.http_url, "disabled": self.is_disabled}
        listeners = address.listeners.get(PULSAR, {})
        value["advertisedListeners"] = {name: {"brokerServiceUrl": url} for name, url in listeners.items()}
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()

    @classmethod
    def parse(cls, path: str, value: bytes) -> Self:
        """Raises MalformedMetadataError. Brokers before Pulsar 3 wrote no `brokerId`: it follows from their HTTP
        address."""
        found = decode(path, value)
        http_url = found.get("httpUrl") or ""
        broker_id = found.get("brokerId") or http_url.removeprefix("http://")
        if not isinstance(broker_id, str) or not isinstance(http_url, str) or not broker_id:
            raise MalformedMetadataError(f"{path} does not name a broker: {found!r}")
        native_url = found.get("nativeUrl")
        urls = {PULSAR: native_url} if isinstance(native_url, str) else {}
        listeners = {PULSAR: _listeners(found.get("advertisedListeners"))}
        return cls(BrokerAddress(broker_id, http_url, urls, listeners), found.get("disabled") is True)


def _listeners(found: object) -> Mapping[str, str]:
    if not isinstance(found, dict):
        return {}
    urls = {name: each.get("brokerServiceUrl") for name, each in found.items() if isinstance(each, dict)}
    return {name: url for name, url in urls.items() if isinstance(url, str)}
