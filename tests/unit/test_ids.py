from __future__ import annotations

import pytest

from magnetar.ids import LEDGER_ID_MAX, bookie_id, ledger_id


@pytest.mark.parametrize("name", ["127.0.0.1:3181", "bookie-1", "b_2.rack", "host.example:3181"])
def test_a_bookie_may_be_called_by_its_address_or_by_a_name(name: str) -> None:
    assert bookie_id(name) == name


@pytest.mark.parametrize("name", ["", "a/b", "a b", "readonly", "ReadOnly", "ü", "a\n"])
def test_a_name_that_would_not_be_one_node_of_its_own_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not a bookie id"):
        bookie_id(name)


def test_a_ledger_id_fits_in_a_signed_long_and_is_not_negative() -> None:
    assert [ledger_id(0), ledger_id(LEDGER_ID_MAX)] == [0, LEDGER_ID_MAX]
    for number in (-1, LEDGER_ID_MAX + 1):
        with pytest.raises(ValueError, match="ledger id"):
            ledger_id(number)
