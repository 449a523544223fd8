"""Cookies: every layout that is read, what is refused, and which differences are named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from interop.metadata.samples import COOKIES
from magnetar.errors import BadVersionError, CookieMismatchError, MalformedMetadataError, NodeExistsError
from magnetar.ids import BookieId
from magnetar.metadata.bookkeeper.cookies import Cookie, CookieStore, decode_cookie, encode_cookie
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.store import MetadataStore
from tests.rows import every_row

COOKIE = COOKIES["many directories"]


@pytest.mark.parametrize("cookie", COOKIES.values(), ids=COOKIES.keys())
def test_a_cookie_survives_a_round(cookie: Cookie) -> None:
    assert decode_cookie(encode_cookie(cookie)) == cookie


def test_a_cookie_is_the_text_that_bookkeeper_writes() -> None:
    text = '5\nbookieHost: "b:1"\njournalDir: "/j"\nledgerDirs: "2\\t/l\\t/m"\ninstanceId: "id"\n'
    cookie = Cookie(bookie_id=BookieId("b:1"), journal_dirs=("/j",), ledger_dirs=("/l", "/m"), instance_id="id")
    assert encode_cookie(cookie).decode() == text


def test_older_layouts_are_read_and_written_in_the_newest() -> None:
    third = decode_cookie(b"3\nb:1\n/j\n2\t/l\t/m\n")
    fourth = decode_cookie(b'4\nbookieHost: "b:1"\njournalDir: "/j"\nledgerDirs: "2\\t/l\\t/m"\n')
    assert (third.layout_version, fourth.layout_version) == (3, 4)
    assert third.ledger_dirs == ("/l", "/m")
    assert not third.differences(fourth)
    assert encode_cookie(third) == encode_cookie(fourth)
    assert encode_cookie(third).startswith(b"5\n")


@every_row(
    ("value", "reason"),
    [
        (b"", "layout version"),
        (b"five\n", "layout version"),
        (b"5", "layout version"),
        (b"2\nb:1\n", "layout version 2"),
        (b"6\n", "layout version 6"),
        (b"5\n", "required"),
        (b"5\n{", "not a message"),
        (b'5\nbookieHost: "b:1"\nother: 1', "other"),
        (b'5\nbookieHost: "a b"\njournalDir: "/j"\nledgerDirs: "1\\t/l"', "bookie id"),
        (b'5\nbookieHost: "b:1"\njournalDir: "/j"\nledgerDirs: "3\\t/l"', "says '3' and has 1"),
        (b'5\nbookieHost: "b:1"\njournalDir: "/j"\nledgerDirs: ""', "directories"),
        (b"5\n\xff", "utf-8"),
        (b"3\nb:1\n/j", "lines"),
        (b"5\n" + b"#" * 300_000, "bytes"),
    ],
)
def test_a_value_that_is_no_cookie_is_refused_with_the_reason(value: bytes, reason: str) -> None:
    with pytest.raises(MalformedMetadataError, match=reason):
        decode_cookie(value)


def test_a_directory_with_a_tab_cannot_be_part_of_a_cookie() -> None:
    with pytest.raises(ValueError, match="tab"):
        replace(COOKIE, ledger_dirs=("/a\tb",))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"bookie_id": BookieId("other:1")}, "bookie id"),
        ({"journal_dirs": ("/j2", "/j1")}, "journal directories"),
        ({"ledger_dirs": ("/l 1",)}, "ledger directories"),
        ({"index_dirs": ("/i1",)}, "index directories"),
        ({"instance_id": "other"}, "instance id"),
        ({"instance_id": None}, "instance id"),
    ],
)
def test_a_difference_is_named_with_both_values(change: dict[str, Any], name: str) -> None:
    with pytest.raises(CookieMismatchError, match=name) as caught:
        replace(COOKIE, **change).verify(COOKIE)
    assert len(replace(COOKIE, **change).differences(COOKIE)) == 1
    assert COOKIE.bookie_id in str(caught.value) or "other:1" in str(caught.value)


def test_the_layout_version_alone_is_no_difference() -> None:
    replace(COOKIE, layout_version=4).verify(COOKIE)


def test_added_directories_are_accepted_only_when_allowed_and_lost_ones_never() -> None:
    more = replace(COOKIE, ledger_dirs=("/new", *COOKIE.ledger_dirs))
    more.verify(COOKIE, more_dirs_allowed=True)
    with pytest.raises(CookieMismatchError, match="ledger directories"):
        more.verify(COOKIE)
    with pytest.raises(CookieMismatchError, match="ledger directories"):
        COOKIE.verify(more, more_dirs_allowed=True)


def test_index_directories_that_are_not_named_are_the_ledger_directories() -> None:
    plain = replace(COOKIE, index_dirs=None)
    plain.verify(replace(COOKIE, index_dirs=COOKIE.ledger_dirs))


async def test_cookies_are_stored_read_changed_and_deleted_by_version(
    store: MetadataStore, paths: BookKeeperPaths
) -> None:
    cookies = CookieStore(store, paths)
    assert await cookies.read(COOKIE.bookie_id) is None
    await cookies.create(COOKIE)
    with pytest.raises(NodeExistsError):
        await cookies.create(COOKIE)
    stored = await cookies.read(COOKIE.bookie_id)
    assert stored is not None
    assert (stored.value, stored.version) == (COOKIE, 0)
    assert await cookies.update(replace(COOKIE, instance_id="new"), 0) == 1
    with pytest.raises(BadVersionError):
        await cookies.delete(COOKIE.bookie_id, 0)
    await cookies.delete(COOKIE.bookie_id, 1)
    assert await cookies.read(COOKIE.bookie_id) is None
