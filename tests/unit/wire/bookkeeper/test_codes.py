from __future__ import annotations

import pytest

from magnetar.errors import RemoteProtocolError
from magnetar.wire.bookkeeper.codes import Code, code_of_number, code_of_status
from magnetar.wire.bookkeeper.proto import bookkeeper_protocol_pb2 as pb
from tests.rows import every_row


@every_row("code", Code)
def test_code_survives_both_numberings(code: Code) -> None:
    assert code_of_number(int(code)) is code
    assert code_of_status(code.status) is code


def test_codes_are_exactly_those_of_the_protobuf_definition() -> None:
    assert {code.name: code.status for code in Code} == dict(pb.StatusCode.items())


@pytest.mark.parametrize("number", [-1, 3, 99, 108, 402])
def test_unknown_number_is_not_guessed(number: int) -> None:
    with pytest.raises(RemoteProtocolError, match=str(number)):
        code_of_number(number)


@pytest.mark.parametrize("status", [-1, 1, 100, 401, 508])
def test_unknown_status_is_not_guessed(status: int) -> None:
    with pytest.raises(RemoteProtocolError, match=str(status)):
        code_of_status(status)
