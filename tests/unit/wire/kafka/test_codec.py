from __future__ import annotations

import json
import re
from importlib.resources import files
from typing import Any

import pytest

from magnetar.errors import RemoteProtocolError
from magnetar.wire.kafka import admin_tables, group_tables, tables
from magnetar.wire.kafka.codec import (
    BOOL,
    INT32,
    RECORDS,
    STRING,
    Api,
    F,
    Field,
    Primitive,
    Reader,
    encode_varint,
)

EVERYTHING = [each for module in (tables, group_tables, admin_tables) for each in vars(module).values()]
APIS = [api for api in EVERYTHING if isinstance(api, Api) and not api.name.endswith("record")]
VERSIONS = [(api, version) for api in APIS for version in range(api.version_min, api.version_max + 1)]
EXAMPLE = Api(
    99,
    "Example",
    versions=(0, 2),
    flexible=2,
    request=[
        F("name", STRING, null=1),
        F("numbers", [INT32]),
        F("later", BOOL, since=1, default=True),
        F("parts", [F("id", INT32), F("data", RECORDS, null=0)]),
        F("tagged", STRING, since=2, tag=0, default="usual"),
    ],
    response=[],
)
VALUE = {
    "name": "é",
    "numbers": [1, -2],
    "later": False,
    "parts": [{"id": 7, "data": [b"ab", b"c"]}, {"id": 8, "data": None}],
    "tagged": "other",
}


def encoded(value: dict[str, Any], version: int) -> bytes:
    return b"".join(EXAMPLE.encode_request(value, version))


def test_a_value_is_the_same_after_encoding_and_decoding_except_for_what_its_version_lacks() -> None:
    for version in range(3):
        found = EXAMPLE.decode_request(encoded(VALUE, version), version)
        assert [bytes(part["data"] or b"-") for part in found.pop("parts")] == [b"abc", b"-"]
        expected = {key: value for key, value in VALUE.items() if key != "parts"}
        if version < 1:
            expected["later"] = True
        if version < 2:
            expected["tagged"] = "usual"
        assert found == expected


def test_lengths_are_varints_of_one_more_in_flexible_versions() -> None:
    value = {"name": "ab", "numbers": [5], "parts": []}
    assert encoded(value, 1).hex() == "00026162" + "0000000100000005" + "01" + "00000000"
    assert encoded(value, 2).hex() == "036162" + "0200000005" + "01" + "01" + "00"


def test_a_tagged_field_is_written_only_if_it_is_not_its_default() -> None:
    assert encoded({"tagged": "x"}, 2).endswith(b"\x01\x00\x02\x02x")
    assert encoded({"tagged": "usual"}, 2).endswith(b"\x00")


def test_unknown_tags_and_bytes_after_the_last_field_are_ignored() -> None:
    data = encoded({"name": "n"}, 2)
    assert data.endswith(b"\x00")
    with_tag = data[:-1] + b"\x01\x05\x03abc"
    assert EXAMPLE.decode_request(with_tag, 2)["name"] == "n"
    assert EXAMPLE.decode_request(data + b"\x00\x00\x00", 2)["name"] == "n"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00\x05ab",
        b"\xff\xff",
        b"\x00\x00\x7f\xff\xff\xff",
        b"\x00\x00\xff\xff\xff\xff\x00\x00\x00\x00",
        b"\x00\x01\xff\x00\x00\x00\x00",
    ],
)
def test_what_is_cut_off_too_long_null_or_no_text_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        EXAMPLE.decode_request(data, 0)


def test_a_length_is_compared_with_what_is_left_before_anything_is_allocated() -> None:
    with pytest.raises(RemoteProtocolError, match="array of 2147483647 elements where 4 bytes"):
        EXAMPLE.decode_request(b"\x00\x00\x7f\xff\xff\xff" + bytes(4), 0)


def test_all_arrays_of_a_message_have_a_limit_together() -> None:
    part = b"\x00\x00\x00\x01\xff\xff\xff\xff"
    data = b"\x00\x00" + bytes(4) + (100_001).to_bytes(4, "big") + part * 100_001
    with pytest.raises(RemoteProtocolError, match="array of 100001"):
        EXAMPLE.decode_request(data, 0)


def test_a_varint_has_five_bytes_at_most() -> None:
    assert [Reader(encode_varint(n)).varint() for n in (0, 127, 128, 2**32 - 1)] == [0, 127, 128, 2**32 - 1]
    with pytest.raises(RemoteProtocolError, match="varint"):
        Reader(b"\x80" * 6).varint()


@pytest.mark.parametrize(("api", "version"), VERSIONS, ids=lambda value: getattr(value, "name", value))
def test_every_message_of_defaults_can_be_encoded_and_read_again(api: Api, version: int) -> None:
    for encode, decode in (
        (api.encode_request, api.decode_request),
        (api.encode_response, api.decode_response),
    ):
        data = b"".join(encode({}, version))
        assert b"".join(encode(_sendable(decode(data, version)), version)) == data


def _sendable(value: Any) -> Any:
    return {key: each for key, each in value.items() if not (isinstance(each, memoryview) or each == {})}


# --- the tables, compared with Kafka's own --------------------------------------------------------------------------


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_the_tables_say_the_same_as_the_schemas_that_kafka_python_carries(api: Api) -> None:
    for role, fields in (("Request", api._request), ("Response", api._response)):
        schema = _schema(api.name + role)
        assert schema["apiKey"] == api.key
        common = {struct["name"]: struct["fields"] for struct in schema.get("commonStructs", [])}
        theirs = [_theirs(field, common, api) for field in schema["fields"]]
        assert [_ours(field, api) for field in fields] == [field for field in theirs if field is not None]


def _schema(name: str) -> Any:
    text = (files("kafka.protocol.schemas.resources") / f"{name}.json").read_text()
    return json.loads(re.sub(r"(?m)(^|[,{}\[\]])\s*//.*$", r"\1", text))


def _ours(field: Field, api: Api) -> Any:
    kind = field.type
    if isinstance(kind, Primitive):
        shape: Any = kind.name
    elif isinstance(kind, list) and isinstance(kind[0], Primitive):
        shape = [kind[0].name]
    else:
        inner = [_ours(each, api) for each in kind if isinstance(each, Field)]
        shape = [inner] if isinstance(kind, list) else tuple(inner)
    bounds = (max(field.since, api.version_min), min(field.until, api.version_max))
    return field.name, shape, bounds, min(field.null, api.version_max + 1), field.tag


def _theirs(field: Any, common: Any, api: Api) -> Any:
    since, until = _bounds(field["versions"])
    if since > api.version_max or until < api.version_min:
        return None
    kind = field["type"]
    base = kind.removeprefix("[]")
    inner = field.get("fields") or common.get(base)
    shape: Any = base
    if inner:
        found = [_theirs(each, common, api) for each in inner]
        shape = tuple(each for each in found if each is not None)
    if kind.startswith("[]"):
        shape = [list(shape) if inner else shape]
    null = field.get("nullableVersions", "none")
    first_null = _bounds(null)[0] if null != "none" else api.version_max + 1
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", field["name"])
    name = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower()
    bounds = (max(since, api.version_min), min(until, api.version_max))
    return name, shape, bounds, min(first_null, api.version_max + 1), field.get("tag", -1)


def _bounds(versions: str) -> tuple[int, int]:
    first, _, last = versions.partition("-")
    if first.endswith("+"):
        return int(first[:-1]), 2**15
    return int(first), int(last or first)
