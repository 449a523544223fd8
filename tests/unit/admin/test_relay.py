"""Metadata through the admin interface: what may be reached, and errors that keep their class."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from magnetar.admin.cluster.relay import Permissions
from magnetar.errors import (
    AccessDeniedError,
    BadVersionError,
    MalformedMetadataError,
    MetadataError,
    NoNodeError,
    OutcomeUnknownError,
    TransactionFailedError,
)
from magnetar.metadata.relay import (
    RELAY_PATH,
    decode_error,
    decode_request,
    decode_result,
    encode_error,
    encode_request,
    encode_result,
)
from magnetar.metadata.store import Check, Children, Create, CreateMode, Delete, Get, Node, Put, Request, Sync, Transact
from tests.rows import every_row
from tests.unit.admin.admin_world import admin_world

pytestmark = pytest.mark.virtual_time

REQUESTS: list[Request] = [
    Get("/a"),
    Children("/a"),
    Sync(),
    Create("/a", b"\x00\xff", CreateMode.PERSISTENT_SEQUENTIAL),
    Put("/a", b"", 7),
    Delete("/a", 3),
    Transact((Check("/a", 1), Create("/b"), Put("/c", b"x"), Delete("/d"))),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda each: type(each).__name__)
def test_a_request_comes_back_as_it_was(request_: Request) -> None:
    assert decode_request(encode_request(request_)) == request_


@pytest.mark.parametrize(
    "error",
    [
        NoNodeError("gone"),
        BadVersionError("late"),
        OutcomeUnknownError("who knows"),
        TransactionFailedError(2, BadVersionError("late")),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_comes_back_with_its_class_and_its_words(error: MetadataError) -> None:
    back = decode_error(encode_error(error))
    assert (type(back), str(back)) == (type(error), str(error))
    if isinstance(error, TransactionFailedError):
        assert isinstance(back, TransactionFailedError)
        assert (back.index, type(back.cause)) == (2, BadVersionError)


def test_an_error_of_a_newer_class_is_still_an_error_of_metadata() -> None:
    assert type(decode_error({"class": "NewError", "message": "x"})) is MetadataError
    assert type(decode_error({"class": "RestError", "message": "x"})) is MetadataError


def test_a_node_comes_back_as_it_was() -> None:
    node = Node(b"\x01", 5, 1, 2, 3)
    assert decode_result(Get("/a"), encode_result(node)) == node
    assert decode_result(Get("/a"), encode_result(None)) is None


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"op": "drop", "path": "/a"},
        {"op": "check", "path": "/a"},
        {"op": "get"},
        {"op": "put", "path": "/a", "value": "not base64!"},
        {"op": "put", "path": "/a", "version": "1"},
        {"op": "create", "path": "/a", "mode": "for ever"},
        {"op": "transact", "operations": [1]},
        {"op": "transact", "operations": [{"op": "create", "path": "/a"}] * 1_001},
    ],
    ids=lambda body: str(body)[:40],
)
def test_what_is_no_operation_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(MetadataError):
        decode_request(body)


PERMITTED: list[Request] = [
    Get("/ledgers/00/0000/L0001"),
    Children("/ledgers/available"),
    Get("/bookies"),
    Get("/magnetar"),
    Sync(),
    Create("/ledgers/00/0000/L0001"),
    Create("/ledgers/idgen/ID-", mode=CreateMode.EPHEMERAL_SEQUENTIAL),
    Create("/magnetar"),
    Create("/magnetar/sinks/s"),
    Transact((Check("/magnetar/sinks/s", 1), Create("/magnetar/sinks/s/0000000001"))),
    Put("/ledgers/underreplication/ledgers/a", b""),
]
DENIED: list[Request] = [
    Get("/"),
    Children("/admin"),
    Get("/ledgersX"),
    Get("/managed-ledgers/public"),
    Put("/bookies", b""),
    Create("/magnetar/other"),
    Delete("/magnetar"),
    Create("/ledgers/x", mode=CreateMode.EPHEMERAL),
    Create("/ledgers/available/me:3181"),
    Delete("/ledgers/cookies/me:3181"),
    Put("/ledgers/INSTANCEID", b""),
    Put("/admin/policies/public", b""),
    Transact((Create("/magnetar/sinks/s"), Delete("/admin/clusters"))),
]


@every_row("request_", PERMITTED, ids=str)
def test_ledgers_and_sinks_may_be_reached(request_: Request) -> None:
    Permissions("/ledgers").check(request_)


@every_row("request_", DENIED, ids=str)
def test_nothing_else_may_be_reached(request_: Request) -> None:
    with pytest.raises(AccessDeniedError):
        Permissions("/ledgers").check(request_)


async def test_an_operation_is_done_on_the_brokers_store() -> None:
    async with admin_world() as world:
        made = await world.call("POST", RELAY_PATH, {"op": "create", "path": "/magnetar"})
        assert (made.status, made.json) == (200, {"result": "/magnetar"})
        again = await world.call("POST", RELAY_PATH, {"op": "create", "path": "/magnetar"})
        assert (again.status, again.json["error"]["class"]) == (409, "NodeExistsError")
        found = await world.call("POST", RELAY_PATH, {"op": "get", "path": "/magnetar", "fresh": True})
        assert found.json["result"]["value"] == base64.b64encode(b"").decode()
        missing = await world.call("POST", RELAY_PATH, {"op": "children", "path": "/magnetar/sinks"})
        assert (missing.status, missing.json["error"]["class"]) == (404, "NoNodeError")
        denied = await world.call("POST", RELAY_PATH, {"op": "get", "path": "/admin"})
        assert (denied.status, denied.json["error"]["class"]) == (403, "AccessDeniedError")
        crooked = await world.call("POST", RELAY_PATH, {"op": "get", "path": "/ledgers/../admin"})
        assert (crooked.status, crooked.json["error"]["class"]) == (400, "InvalidPathError")
        malformed = await world.call("POST", RELAY_PATH, {"op": "put", "path": "/ledgers/a", "value": "§"})
        assert (malformed.status, malformed.json["error"]["class"]) == (400, MalformedMetadataError.__name__)
