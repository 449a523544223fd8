"""What a registered bookie says about itself."""

from __future__ import annotations

import pytest

from interop.metadata.samples import SERVICE_INFOS
from magnetar.errors import MalformedMetadataError
from magnetar.ids import BookieId
from magnetar.metadata.bookkeeper.proto.service_info_pb2 import BookieServiceInfoFormat
from magnetar.metadata.bookkeeper.service_info import (
    BookieServiceInfo,
    Endpoint,
    decode_service_info,
    encode_service_info,
)

BOOKIE = BookieId("bookie.example:3181")


@pytest.mark.parametrize("info", SERVICE_INFOS.values(), ids=SERVICE_INFOS.keys())
def test_service_info_survives_a_round(info: BookieServiceInfo) -> None:
    assert decode_service_info(BOOKIE, encode_service_info(info)) == info


def test_the_same_properties_are_the_same_bytes_in_whatever_order() -> None:
    one = BookieServiceInfo((), {"a": "1", "b": "2"})
    other = BookieServiceInfo((), {"b": "2", "a": "1"})
    assert encode_service_info(one) == encode_service_info(other)


def test_an_empty_value_is_one_endpoint_at_the_address_in_the_bookie_id() -> None:
    endpoint = Endpoint(id=BOOKIE, host="bookie.example", port=3181, protocol="bookie-rpc")
    assert decode_service_info(BOOKIE, b"") == BookieServiceInfo((endpoint,))


@pytest.mark.parametrize("bookie", ["bookie-1", "a:b:1", "a:", ":1", "a:99999", "a:x"])
def test_an_empty_value_of_a_bookie_whose_id_is_no_address_is_refused(bookie: str) -> None:
    with pytest.raises(MalformedMetadataError, match="host:port"):
        decode_service_info(BookieId(bookie), b"")


def endpoint(**fields: object) -> bytes:
    made = BookieServiceInfoFormat()
    made.endpoints.add(**{"id": "i", "host": "h", "port": 1, "protocol": "p", **fields})  # type: ignore[arg-type]
    return made.SerializeToString()


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"\xff\xff", "Error parsing|Wire|parse"),
        (b"\x32\x00", "required"),
        (endpoint(port=-1), "port -1"),
        (endpoint(port=70_000), "port 70000"),
        (endpoint(host="XX").replace(b"XX", b"\xff\xff"), "UTF-8"),
        (endpoint(auth=["XX"]).replace(b"XX", b"\xff\xff"), "UTF-8"),
        (bytes(2**20 + 1), "bytes"),
    ],
)
def test_a_value_that_is_no_service_info_is_refused(value: bytes, reason: str) -> None:
    with pytest.raises(MalformedMetadataError, match=reason):
        decode_service_info(BOOKIE, value)
