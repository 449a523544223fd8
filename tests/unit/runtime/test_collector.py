"""The cycle collector: out of the way while modules are imported, and less eager in a server."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from magnetar.runtime.collector import expect_long_life, importing


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    thresholds, was_enabled = gc.get_threshold(), gc.isenabled()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)
    (gc.enable if was_enabled else gc.disable)()


def test_nothing_is_collected_while_importing_and_it_goes_on_afterwards() -> None:
    gc.enable()
    with importing():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_goes_on_also_if_the_import_fails() -> None:
    gc.enable()
    with pytest.raises(ImportError), importing():
        raise ImportError
    assert gc.isenabled()


def test_whoever_has_switched_it_off_finds_it_off() -> None:
    gc.disable()
    with importing():
        pass
    assert not gc.isenabled()


def test_what_was_imported_is_not_walked_again() -> None:
    with importing():
        made: list[dict[str, str]] = [{}]
    assert gc.get_freeze_count() > 0
    assert all(found is not made for found in gc.get_objects())


def test_a_server_looks_less_often_than_python_does_by_default() -> None:
    gc.set_threshold(700, 10, 10)
    expect_long_life()
    assert gc.get_threshold() > (700, 10, 10)


def test_a_look_at_older_objects_is_at_few_of_them() -> None:
    expect_long_life()
    young, looks, _ = gc.get_threshold()
    assert young * looks <= 20_000
