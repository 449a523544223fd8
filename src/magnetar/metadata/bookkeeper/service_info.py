"""What a registered bookie publishes: the places of its services, and properties. The value of `available/ID`.

Format:    protobuf (proto/service_info.proto). An empty value is what old bookies write: one endpoint for entries,
           whose address is the bookie id itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from google.protobuf.message import DecodeError

from magnetar.errors import MalformedMetadataError
from magnetar.ids import BookieId
from magnetar.metadata.bookkeeper.proto.service_info_pb2 import BookieServiceInfoFormat
from magnetar.metadata.bookkeeper.proto_strings import checked

BOOKIE_RPC: Final = "bookie-rpc"
"""The protocol of the endpoint for entries."""
PORT_MAX: Final = 65_535
_VALUE_BYTES_MAX: Final = 2**20
_HOST_AND_PORT = re.compile(r"([^:]+):([0-9]{1,5})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    id: str
    host: str
    port: int
    protocol: str
    auth: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.port <= PORT_MAX:
            raise ValueError(f"port {self.port} of endpoint {self.id!r} is out of range")


@dataclass(frozen=True, slots=True)
class BookieServiceInfo:
    endpoints: tuple[Endpoint, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)


def encode_service_info(info: BookieServiceInfo) -> bytes:
    message = BookieServiceInfoFormat(properties=info.properties)
    for e in info.endpoints:
        message.endpoints.add(
            id=e.id, port=e.port, host=e.host, protocol=e.protocol, auth=e.auth, extensions=e.extensions
        )
    return message.SerializeToString(deterministic=True)


def decode_service_info(bookie: BookieId, value: bytes) -> BookieServiceInfo:
    if not value:
        return BookieServiceInfo((legacy_endpoint(bookie),))
    if len(value) > _VALUE_BYTES_MAX:
        raise MalformedMetadataError(f"service info of bookie {bookie}: {len(value)} bytes")
    message = BookieServiceInfoFormat()
    try:
        message.ParseFromString(value)
        if not message.IsInitialized():
            raise ValueError("a required field is missing")
        properties = {checked(key): checked(value) for key, value in message.properties.items()}
        return BookieServiceInfo(tuple(map(_to_endpoint, message.endpoints)), dict(sorted(properties.items())))
    except (DecodeError, ValueError) as error:
        raise MalformedMetadataError(f"service info of bookie {bookie}: {error}") from error


def _to_endpoint(e: BookieServiceInfoFormat.Endpoint) -> Endpoint:
    return Endpoint(
        id=checked(e.id),
        host=checked(e.host),
        port=e.port,
        protocol=checked(e.protocol),
        auth=tuple(map(checked, e.auth)),
        extensions=tuple(map(checked, e.extensions)),
    )


def legacy_endpoint(bookie: BookieId) -> Endpoint:
    """Returns the endpoint that an empty value stands for; only a bookie id of the form host:port has one."""
    found = _HOST_AND_PORT.fullmatch(bookie)
    if found is None or int(found[2]) > PORT_MAX:
        raise MalformedMetadataError(f"bookie {bookie} has no service info, and its id is not host:port")
    return Endpoint(id=bookie, host=found[1], port=int(found[2]), protocol=BOOKIE_RPC)
