"""May a bookie serve from these directories? Decided from its cookies alone, before anything is written.

Why:       a bookie that lost a disk, or got another's, would answer "no such entry" for entries it had acknowledged,
           and a recovery would believe it. So it serves nothing until every directory and the metadata agree.
First start: directories first, the metadata last: the metadata's cookie is the commit. Whatever a crash leaves before
           that (some directories stamped, none or all) has no data and no cookie in the metadata, and is finished by
           the next start. After it, a directory without its cookie has been lost.
Repaired:  a directory may say that the bookie waits for a repair (limbo.py): until that is done it does not start.
Refused:   whatever is not certainly a first start and does not match in full. Data without a cookie in the metadata is
           refused, too: an operator who deleted the cookie has declared this bookie gone.
Read next: identity.py
"""

from __future__ import annotations

import enum
import posixpath
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from magnetar.bookie.directories import REPAIR_FILE
from magnetar.errors import CookieMismatchError
from magnetar.metadata.bookkeeper.cookies import Cookie


@dataclass(frozen=True, slots=True)
class Found:
    """What one directory has."""

    path: str
    cookie: Cookie | None
    data_names: Sequence[str] = ()
    is_being_repaired: bool = False
    """It was lost, and what it has comes from a repair that was interrupted; or ledgers of the bookie are unknown to
    it since its index was rebuilt."""


class Verdict(enum.Enum):
    KNOWN = "known"
    FIRST_START = "first start"


def check_cookies(ours: Cookie, stored: Cookie | None, directories: Sequence[Found]) -> Verdict:
    """`stored` is the metadata's. CookieMismatchError names both cookies, what differs, and what to do."""
    if stored is not None:
        _require_same(ours, stored, "the metadata", _as_it_was(ours))
    for found in directories:
        if found.cookie is not None:
            _require_same(ours, found.cookie, found.path, _other_directory(ours, found))
    if stored is not None:
        _require_all_stamped(ours, stored, directories)
        _require_repaired(ours, directories)
        return Verdict.KNOWN
    _require_unused(ours, directories)
    return Verdict.FIRST_START


def check_for_repair(ours: Cookie, stored: Cookie | None, directories: Sequence[Found]) -> list[str]:
    """The directories that were lost: they have no cookie, and nothing else. CookieMismatchError if it is worse."""
    if stored is None:
        raise CookieMismatchError(
            f"bookie {ours.bookie_id} has no cookie in the metadata: it was declared gone, or this is another metadata "
            f"store. Configured: {describe_cookie(ours)}; cookie in the metadata: none. Check --metadata and the id"
        )
    _require_same(ours, stored, "the metadata", _as_it_was(ours))
    lost: list[str] = []
    for found in directories:
        if found.cookie is not None:
            _require_same(ours, found.cookie, found.path, _other_directory(ours, found))
            continue
        if found.data_names and not found.is_being_repaired:
            raise CookieMismatchError(
                f"{found.path} has no cookie but is not empty (it has {', '.join(found.data_names[:5])}): if it is "
                f"this bookie's and complete, write its cookie anew: magnetar bookie cookie get {ours.bookie_id} --raw "
                f"> {shlex.quote(posixpath.join(found.path, 'VERSION'))}. Else move what is there elsewhere"
            )
        lost.append(found.path)
    return lost


def limbo_command(cookie: Cookie, metadata_url: str = "URL") -> str:
    """What an operator runs when something that was acknowledged may be gone for good."""
    url = metadata_url if metadata_url == "URL" else shlex.quote(metadata_url)
    return f"magnetar bookie limbo {_directory_options(cookie)} --metadata {url}"


def describe_cookie(cookie: Cookie) -> str:
    fields = {
        "id": cookie.bookie_id,
        "journal": ",".join(cookie.journal_dirs),
        "ledgers": ",".join(cookie.ledger_dirs),
        "instance": cookie.instance_id or "none",
    }
    if cookie.index_dirs is not None:
        fields["index"] = ",".join(cookie.index_dirs)
    return f"[{'; '.join(f'{name} {value}' for name, value in fields.items())}]"


def _require_same(ours: Cookie, other: Cookie, where: str, advice: str) -> None:
    if found := ours.differences(other):
        raise CookieMismatchError(
            f"bookie {ours.bookie_id} does not match the cookie in {where}: {'; '.join(found)}. "
            f"Configured: {describe_cookie(ours)}; cookie in {where}: {describe_cookie(other)}. {advice}"
        )


def _require_all_stamped(ours: Cookie, stored: Cookie, directories: Sequence[Found]) -> None:
    lost = [found.path for found in directories if found.cookie is None]
    if lost:
        raise CookieMismatchError(
            f"bookie {ours.bookie_id} has a cookie in the metadata but none in {', '.join(lost)}: that disk was lost, "
            "emptied, swapped or not mounted, and entries that were acknowledged may be gone. "
            f"Configured: {describe_cookie(ours)}; cookie in the metadata: {describe_cookie(stored)}. "
            "Bring the disk back. If its data is lost, put what may be forgotten in limbo and go on with the rest: "
            f"{limbo_command(ours)}. Or begin anew: {_begin_anew(ours)}"
        )


def _require_repaired(ours: Cookie, directories: Sequence[Found]) -> None:
    marked = [found.path for found in directories if found.is_being_repaired]
    if marked:
        raise CookieMismatchError(
            f"bookie {ours.bookie_id} is not repaired yet, as {REPAIR_FILE} in {', '.join(marked)} says: its index was "
            "rebuilt without the fences of the old one, or a repair was interrupted. Ledgers that it made promises for "
            "are unknown to it, and it would deny them. Let the metadata tell which they are: "
            f"{limbo_command(ours)}"
        )


def _require_unused(ours: Cookie, directories: Sequence[Found]) -> None:
    used = [found for found in directories if found.data_names]
    if not used:
        return
    unstamped = [found for found in directories if found.cookie is None]
    if not unstamped:
        raise CookieMismatchError(
            f"bookie {ours.bookie_id} has data and a cookie in its directories but none in the metadata: "
            f"it was declared gone, or this is another metadata store. Configured: {describe_cookie(ours)}; "
            f"cookie in {directories[0].path}: {describe_cookie(ours)}; cookie in the metadata: none. "
            f"If the data is complete: magnetar bookie cookie create {ours.bookie_id} "
            f"--file {directories[0].path}/VERSION. Else: {_format(ours)}"
        )
    if len(unstamped) < len(directories):
        missing = ", ".join(found.path for found in unstamped)
        raise CookieMismatchError(
            f"bookie {ours.bookie_id} has data in {used[0].path} but no cookie in {missing} and none in the metadata: "
            f"that disk was lost or swapped. Configured: {describe_cookie(ours)}; cookie in {missing}: none. "
            f"Bring the disk back. If its data is lost: {_format(ours)}"
        )
    raise CookieMismatchError(
        f"bookie {ours.bookie_id} would be new, but {used[0].path} is not empty and has no cookie "
        f"(it has {', '.join(used[0].data_names[:5])}). Configured: {describe_cookie(ours)}; cookie: none. "
        f"Use an empty directory, or remove what is there: {_format(ours)}"
    )


def _as_it_was(ours: Cookie) -> str:
    return (
        "Start it as the cookie says; an id, a port or a directory cannot be changed on a bookie that has data. "
        f"To begin anew without its data: {_begin_anew(ours)}"
    )


def _other_directory(ours: Cookie, found: Found) -> str:
    cookie = found.cookie
    assert cookie is not None
    if cookie.instance_id != ours.instance_id:
        return (
            f"{found.path} belongs to another cluster: check metadata.url and metadata.ledgers_root. "
            f"To give it to this cluster without its data: {_format(ours)}"
        )
    return f"Start it as the cookie says. To use the directory without its data: {_format(ours)}"


def _format(ours: Cookie) -> str:
    return f"magnetar bookie format {_directory_options(ours)} --force"


def _directory_options(ours: Cookie) -> str:
    home = posixpath.dirname(ours.ledger_dirs[0])
    below = tuple((posixpath.join(home, name),) for name in ("journal", "ledgers"))
    if (ours.journal_dirs, ours.ledger_dirs) == below:
        return f"--dir {shlex.quote(home)}"
    dirs = {"journal_dirs": ours.journal_dirs, "ledger_dirs": ours.ledger_dirs}
    settings = [f"bookie.{name}={','.join(paths)}" for name, paths in dirs.items()]
    return " ".join(f"--set {shlex.quote(setting)}" for setting in settings)


def _begin_anew(ours: Cookie) -> str:
    return (
        "let every ledger that names this bookie be re-replicated, then magnetar bookie cookie delete "
        f"{ours.bookie_id} and {_format(ours)}"
    )
