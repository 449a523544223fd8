"""Values alone: each sample encoded by one side and decoded by the other, field by field, in both directions."""

from __future__ import annotations

from base64 import b64decode

from interop.comparing import same
from interop.java_program import ApacheError
from interop.metadata.conftest import Metadata
from interop.metadata.fields import (
    as_stored,
    cookie_fields,
    cookie_texts,
    ledger_fields,
    service_info_fields,
    text,
)
from interop.metadata.samples import COOKIES, LEDGER_IDS, NODE_CTIME, SERVICE_INFOS, ledgers
from magnetar.errors import CookieMismatchError
from magnetar.ids import BookieId
from magnetar.metadata.bookkeeper.cluster import HIERARCHICAL, LedgerLayout, decode_layout, encode_layout
from magnetar.metadata.bookkeeper.cookies import decode_cookie, encode_cookie
from magnetar.metadata.bookkeeper.ledger_codec import decode, encode
from magnetar.metadata.bookkeeper.paths import ledger_path_below_root, parse_ledger_path
from magnetar.metadata.bookkeeper.service_info import decode_service_info, encode_service_info


async def test_apache_reads_every_field_of_the_ledger_metadata_we_encode(metadata: Metadata) -> None:
    for name, sample in ledgers():
        theirs = await metadata.apache.ask(
            "parseLedger", ledgerId=sample.ledger_id, value=text(encode(sample)), nodeCtime=NODE_CTIME
        )
        same(name, ledger_fields(as_stored(sample, NODE_CTIME)), theirs)


async def test_we_read_every_field_of_the_ledger_metadata_apache_encodes(metadata: Metadata) -> None:
    for name, sample in ledgers():
        value = b64decode(await metadata.apache.ask("serializeLedger", metadata=ledger_fields(sample)))
        ours = decode(sample.ledger_id, value, node_created_ms=NODE_CTIME)
        same(name, ledger_fields(ours), ledger_fields(as_stored(sample, NODE_CTIME)))


async def test_both_sides_read_the_same_from_what_either_wrote_again(metadata: Metadata) -> None:
    """Read and written once more by the other side, nothing is lost, in any version."""
    for name, sample in ledgers():
        if sample.password is None or sample.format_version == 1:
            continue  # Apache's class cannot write a protobuf version without a password, nor one read from version 1.
        value = b64decode(await metadata.apache.ask("serializeLedger", metadata=ledger_fields(sample)))
        again = encode(decode(sample.ledger_id, value, node_created_ms=NODE_CTIME))
        theirs = await metadata.apache.ask(
            "parseLedger", ledgerId=sample.ledger_id, value=text(again), nodeCtime=NODE_CTIME
        )
        same(name, ledger_fields(as_stored(sample, NODE_CTIME)), theirs)


async def test_version_1_is_the_same_bytes_on_both_sides(metadata: Metadata) -> None:
    for name, sample in ledgers():
        if sample.format_version == 1:
            same(
                name, text(encode(sample)), await metadata.apache.ask("serializeLedger", metadata=ledger_fields(sample))
            )


async def test_the_layout_is_the_same_bytes_on_both_sides(metadata: Metadata) -> None:
    theirs = await metadata.apache.ask("serializeLayout", manager=HIERARCHICAL, version=1)
    same("LAYOUT", text(encode_layout(LedgerLayout())), theirs)
    same("LAYOUT read", decode_layout(b64decode(theirs)), LedgerLayout())


async def test_apache_reads_every_field_of_the_cookies_we_encode(metadata: Metadata) -> None:
    for name, sample in COOKIES.items():
        same(name, cookie_texts(sample), await metadata.apache.ask("parseCookie", value=text(encode_cookie(sample))))


async def test_we_read_every_field_of_the_cookies_apache_encodes(metadata: Metadata) -> None:
    for name, sample in COOKIES.items():
        value = b64decode(await metadata.apache.ask("serializeCookie", cookie=cookie_fields(sample)))
        same(name, cookie_fields(decode_cookie(value)), cookie_fields(sample))


async def test_both_sides_agree_on_which_cookies_match(metadata: Metadata) -> None:
    for ours_name, ours in COOKIES.items():
        for stored_name, stored in COOKIES.items():
            for more in (False, True):
                theirs = await _verdict(metadata, encode_cookie(ours), encode_cookie(stored), more)
                try:
                    ours.verify(stored, more_dirs_allowed=more)
                    verdict = True
                except CookieMismatchError:
                    verdict = False
                same(f"{ours_name} against {stored_name}", verdict, theirs)


async def _verdict(metadata: Metadata, ours: bytes, stored: bytes, more: bool) -> bool:
    try:
        return bool(
            await metadata.apache.ask("verifyCookie", ours=text(ours), stored=text(stored), moreDirsAllowed=more)
        )
    except ApacheError as error:
        if "InvalidCookieException" not in str(error):
            raise
        return False


async def test_we_read_every_field_of_the_service_info_apache_encodes(metadata: Metadata) -> None:
    for name, sample in SERVICE_INFOS.items():
        value = b64decode(await metadata.apache.ask("serializeServiceInfo", info=service_info_fields(sample)))
        ours = decode_service_info(BookieId("b"), value)
        same(name, service_info_fields(ours), service_info_fields(sample))
        same(f"{name} again", decode_service_info(BookieId("b"), encode_service_info(ours)), sample)


async def test_ledger_paths_are_the_same_on_both_sides(metadata: Metadata) -> None:
    for ledger_id in LEDGER_IDS:
        theirs = await metadata.apache.ask("ledgerPath", ledgerId=ledger_id)
        same(f"path of {ledger_id}", "/" + ledger_path_below_root(ledger_id), theirs)
        same(
            f"id of {theirs}",
            parse_ledger_path(theirs[1:]),
            await metadata.apache.ask("ledgerIdOfPath", path=theirs[1:]),
        )
