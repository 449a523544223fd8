"""Sealing and checking entries, against bytes that Apache's own classes made."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.errors import DigestMismatchError
from magnetar.wire.bookkeeper.digests import DigestType, EntryDigest, entry_digest, master_key
from magnetar.wire.bookkeeper.frames import Flag
from magnetar.wire.bookkeeper.hot_path import AddEncoder
from tests.rows import every_row
from tests.unit.wire.bookkeeper.samples import ENTRY, LAC, LEDGER, LENGTH, PAYLOAD, golden

GOLDEN = golden()
PASSWORDS = {"empty": b"", "secret": b"secret"}
LARGE = bytes(i * 7 & 0xFF for i in range(2000))
PAYLOADS = {"entry": PAYLOAD, "entry-of-nothing": b"", "entry-large": LARGE}
BOTH = [(kind, password) for kind in DigestType for password in PASSWORDS]


@pytest.mark.parametrize("password", PASSWORDS)
def test_master_key_is_apaches(password: str) -> None:
    assert master_key(PASSWORDS[password]) == GOLDEN[f"key/{password}"]


@pytest.mark.parametrize(("kind", "password"), BOTH)
@pytest.mark.parametrize("sample", PAYLOADS)
def test_entry_is_sealed_and_opened_as_apache_does(kind: DigestType, password: str, sample: str) -> None:
    digest, payload = entry_digest(kind, PASSWORDS[password]), PAYLOADS[sample]
    expected = GOLDEN[f"{sample}/{kind.name}/{password}"]
    assert digest.seal(LEDGER, ENTRY, LAC, LENGTH, payload) + payload == expected
    for received in (expected, bytearray(expected), memoryview(bytearray(expected))):
        entry = digest.open(LEDGER, ENTRY, received)
        assert (entry.lac, entry.length, bytes(entry.payload)) == (LAC, LENGTH, payload)
    assert digest.open_last(LEDGER, expected).entry_id == ENTRY


@pytest.mark.parametrize(("kind", "password"), BOTH)
def test_explicit_lac_is_sealed_and_opened_as_apache_does(kind: DigestType, password: str) -> None:
    digest = entry_digest(kind, PASSWORDS[password])
    expected = GOLDEN[f"lac/{kind.name}/{password}"]
    assert digest.seal_lac(LEDGER, LAC) == expected
    assert digest.open_lac(LEDGER, expected) == LAC


@pytest.mark.parametrize(("kind", "password"), BOTH)
@pytest.mark.parametrize(
    ("name", "flags"), [("v2-add", Flag.NONE), ("v2-add-recovery", Flag.RECOVERY_ADD | Flag.HIGH_PRIORITY)]
)
def test_add_frame_of_the_encoder_is_apaches(kind: DigestType, password: str, name: str, flags: int) -> None:
    key = master_key(PASSWORDS[password])
    encoder = AddEncoder(LEDGER, key, entry_digest(kind, PASSWORDS[password]), flags)
    frame = encoder.header(ENTRY, LAC, LENGTH, PAYLOAD) + PAYLOAD
    assert frame == GOLDEN[f"{name}/{kind.name}/{password}"]


CHECKED = [kind for kind in DigestType if kind is not DigestType.DUMMY]


@pytest.mark.parametrize(("kind", "password"), BOTH)
def test_a_run_of_entries_is_opened_as_each_of_them_is(kind: DigestType, password: str) -> None:
    digest = entry_digest(kind, PASSWORDS[password])
    bodies = [
        digest.seal(LEDGER, ENTRY + step, LAC, LENGTH + step, payload) + payload
        for step, payload in enumerate(PAYLOADS.values())
    ]
    opened = digest.open_run(LEDGER, ENTRY, bodies)
    assert opened == [digest.open(LEDGER, ENTRY + step, body) for step, body in enumerate(bodies)]
    assert [bytes(entry.payload) for entry in opened] == list(PAYLOADS.values())
    assert digest.open_run(LEDGER, ENTRY, []) == []


@pytest.mark.parametrize("kind", CHECKED)
@pytest.mark.parametrize("damage", ["payload", "another entry", "another ledger", "cut short"])
def test_a_run_with_one_entry_that_is_wrong_is_refused(kind: DigestType, damage: str) -> None:
    digest = entry_digest(kind)
    good = digest.seal(LEDGER, ENTRY, LAC, LENGTH, PAYLOAD) + PAYLOAD
    following = digest.seal(LEDGER, ENTRY + 1, LAC, LENGTH, PAYLOAD) + PAYLOAD
    wrong = {
        "payload": following[:-1] + bytes([following[-1] ^ 1]),
        "another entry": digest.seal(LEDGER, ENTRY + 2, LAC, LENGTH, PAYLOAD) + PAYLOAD,
        "another ledger": digest.seal(LEDGER + 1, ENTRY + 1, LAC, LENGTH, PAYLOAD) + PAYLOAD,
        "cut short": following[:20],
    }[damage]
    with pytest.raises(DigestMismatchError):
        digest.open_run(LEDGER, ENTRY, [good, wrong])


def _sealed(digest: EntryDigest, payload: bytes = PAYLOAD) -> bytes:
    return digest.seal(LEDGER, ENTRY, LAC, LENGTH, payload) + payload


@pytest.mark.parametrize("kind", CHECKED)
def test_flipping_any_single_bit_of_an_entry_is_noticed(kind: DigestType) -> None:
    digest = entry_digest(kind, b"secret")
    sealed = _sealed(digest)
    for bit in range(len(sealed) * 8):
        damaged = bytearray(sealed)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DigestMismatchError):
            digest.open(LEDGER, ENTRY, damaged)


@pytest.mark.parametrize("kind", DigestType)
def test_entry_of_any_other_length_is_refused(kind: DigestType) -> None:
    digest = entry_digest(kind)
    sealed = _sealed(digest, b"")
    for length in range(len(sealed)):
        with pytest.raises(DigestMismatchError):
            digest.open(LEDGER, ENTRY, sealed[:length])
    lac = digest.seal_lac(LEDGER, LAC)
    for length in range(len(lac)):
        with pytest.raises(DigestMismatchError):
            digest.open_lac(LEDGER, lac[:length])


@pytest.mark.parametrize("kind", DigestType)
def test_intact_entry_of_another_place_is_refused(kind: DigestType) -> None:
    digest = entry_digest(kind)
    with pytest.raises(DigestMismatchError, match="got entry 77"):
        digest.open(LEDGER, ENTRY + 1, _sealed(digest))
    with pytest.raises(DigestMismatchError, match=f"of ledger {LEDGER}"):
        digest.open(LEDGER + 1, ENTRY, _sealed(digest))
    with pytest.raises(DigestMismatchError, match=f"of ledger {LEDGER}"):
        digest.open_lac(LEDGER + 1, digest.seal_lac(LEDGER, LAC))


def test_entry_sealed_with_another_password_is_refused_by_hmac_alone() -> None:
    sealed = _sealed(entry_digest(DigestType.HMAC, b"secret"))
    with pytest.raises(DigestMismatchError, match="password"):
        entry_digest(DigestType.HMAC, b"other").open(LEDGER, ENTRY, sealed)
    crc = _sealed(entry_digest(DigestType.CRC32C, b"secret"))
    assert entry_digest(DigestType.CRC32C, b"other").open(LEDGER, ENTRY, crc).entry_id == ENTRY


@every_row("damaged_byte", range(20))
def test_damaged_explicit_lac_is_refused(damaged_byte: int) -> None:
    digest = entry_digest(DigestType.CRC32C)
    sealed = bytearray(digest.seal_lac(LEDGER, LAC))
    sealed[damaged_byte] ^= 0x10
    with pytest.raises(DigestMismatchError):
        digest.open_lac(LEDGER, sealed)


@given(st.sampled_from(DigestType), st.binary(max_size=100), st.binary(max_size=100), st.integers(0, 2**62))
def test_what_is_sealed_opens_with_the_same_digest(
    kind: DigestType, password: bytes, payload: bytes, entry_id: int
) -> None:
    digest = entry_digest(kind, password)
    sealed = digest.seal(1, entry_id, entry_id - 1, 5, payload) + payload
    assert digest.overhead_bytes == len(sealed) - len(payload)
    assert digest.open(1, entry_id, sealed) == (entry_id, entry_id - 1, 5, payload)
