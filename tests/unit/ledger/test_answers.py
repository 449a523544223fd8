from __future__ import annotations

import pytest

from magnetar.errors import EntryAbsentError, EntryDamagedError, EntryUnavailableError, WrongPasswordError
from magnetar.ids import BookieId, LedgerId
from magnetar.ledger.channels.answers import Answer, Finding, interpret, unreadable
from magnetar.ledger.metadata import LedgerKeys
from magnetar.quorum.coverage import Meaning, meaning_of
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.digests import DigestType, entry_digest, master_key
from magnetar.wire.bookkeeper.frames import LAST_ENTRY
from magnetar.wire.bookkeeper.messages import BatchReadResponse, ReadResponse

KEYS = LedgerKeys(LedgerId(7), entry_digest(DigestType.CRC32C), master_key(b""))


def sealed(entry_id: int) -> bytes:
    return KEYS.digest.seal(7, entry_id, entry_id - 1, 10, b"payload") + b"payload"


@pytest.mark.parametrize("code", [code for code in Code if code not in (Code.EOK, Code.EUA)])
def test_code_says_about_the_entry_what_the_quorum_rules_say(code: Code) -> None:
    answer = interpret(KEYS, 3, ReadResponse(code, 7, 3))
    assert answer.meaning is meaning_of(code)
    assert not answer.entries


def test_entry_whose_digest_holds_is_present() -> None:
    answer = interpret(KEYS, 3, ReadResponse(Code.EOK, 7, 3, sealed(3)))
    assert answer.meaning is Meaning.PRESENT
    assert (answer.entries[0].entry_id, bytes(answer.entries[0].payload)) == (3, b"payload")
    assert interpret(KEYS, LAST_ENTRY, ReadResponse(Code.EOK, 7, -1, sealed(8))).entries[0].entry_id == 8


@pytest.mark.parametrize("body", [b"", b"short", sealed(3)[:-1], sealed(4), sealed(3)[:-1] + b"?"])
def test_entry_that_is_not_what_was_written_says_nothing(body: bytes) -> None:
    answer = interpret(KEYS, 3, ReadResponse(Code.EOK, 7, 3, body))
    assert (answer.finding, answer.meaning) == (Finding.DAMAGED, Meaning.NOTHING)


def test_refused_key_is_an_error_and_no_answer() -> None:
    with pytest.raises(WrongPasswordError):
        interpret(KEYS, 3, ReadResponse(Code.EUA, 7, 3))


def test_batch_is_cut_to_what_was_asked_for() -> None:
    response = BatchReadResponse(Code.EOK, 7, 3, 1, [sealed(3), sealed(4), sealed(5)])
    answer = interpret(KEYS, 3, response, entries_max=2)
    assert [entry.entry_id for entry in answer.entries] == [3, 4]


def test_batch_with_a_gap_or_without_an_entry_says_nothing() -> None:
    gap = BatchReadResponse(Code.EOK, 7, 3, 1, [sealed(3), sealed(5)])
    assert interpret(KEYS, 3, gap, entries_max=9).finding is Finding.DAMAGED
    empty = BatchReadResponse(Code.EOK, 7, 3, 1, [])
    assert interpret(KEYS, 3, empty, entries_max=9).finding is Finding.REFUSED


@pytest.mark.parametrize(
    ("findings", "error"),
    [
        ([Finding.ABSENT, Finding.ABSENT], EntryAbsentError),
        ([Finding.ABSENT, Finding.DAMAGED], EntryDamagedError),
        ([Finding.DAMAGED, Finding.UNREACHABLE], EntryUnavailableError),
        ([Finding.ABSENT, Finding.UNREACHABLE], EntryUnavailableError),
        ([Finding.ABSENT, Finding.LIMBO], EntryUnavailableError),
        ([Finding.ABSENT, Finding.REFUSED], EntryUnavailableError),
    ],
)
def test_error_tells_apart_what_the_bookies_said(findings: list[Finding], error: type[Exception]) -> None:
    answers = {BookieId(f"b{number}"): Answer(finding) for number, finding in enumerate(findings)}
    found = unreadable(LedgerId(7), 3, answers)
    assert type(found) is error
    assert "b0" in str(found)
    assert "entry 3 of ledger 7" in str(found)
