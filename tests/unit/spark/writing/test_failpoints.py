"""A test learns when a point of the protocol is reached; nobody else does."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator

import pytest

from magnetar.spark import failpoints

SEEN: list[tuple[str, int]] = []


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    yield
    importlib.reload(failpoints)


def note(point: str, epoch: int) -> None:
    SEEN.append((point, epoch))


def test_nothing_happens_without_a_hook() -> None:
    failpoints.reached("tasks-done", 1)


def test_the_function_named_in_the_environment_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as changed:
        changed.setitem(sys.modules, "a_hook", sys.modules[__name__])
        changed.setenv("SPARK_MAGNETAR_FAILPOINTS", "a_hook:note")
        importlib.reload(failpoints)
    SEEN.clear()

    failpoints.reached("mid-append", 3)

    assert SEEN == [("mid-append", 3)]


def test_a_hook_can_be_set_and_taken_away() -> None:
    SEEN.clear()
    failpoints.set_hook(note)
    failpoints.reached("published", 4)
    failpoints.set_hook(None)
    failpoints.reached("published", 5)

    assert SEEN == [("published", 4)]
