"""Descriptors that connections may not take."""

from __future__ import annotations

import asyncio
import resource
from typing import Any

import pytest

from magnetar.runtime import descriptors
from magnetar.runtime.descriptors import raise_limit, takes_from_reserve


class Transport(asyncio.BaseTransport):
    def __init__(self, fileno: int | None) -> None:
        super().__init__()
        self._fileno = fileno

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self if name == "socket" and self._fileno is not None else default

    def fileno(self) -> int:
        assert self._fileno is not None
        return self._fileno


@pytest.mark.parametrize(
    ("limit", "fileno", "is_one_too_many"),
    [
        (1_024, 511, False),
        (1_024, 512, True),
        (100_000, 99_487, False),
        (100_000, 99_488, True),
        (100, 49, False),
        (100, 50, True),
        (resource.RLIM_INFINITY, 10**6, False),
        (100, None, False),
    ],
)
def test_a_connection_may_not_take_what_is_kept_for_files(
    monkeypatch: pytest.MonkeyPatch, limit: int, fileno: int | None, is_one_too_many: bool
) -> None:
    monkeypatch.setattr(descriptors.resource, "getrlimit", lambda _: (limit, limit))
    assert takes_from_reserve(Transport(fileno)) is is_one_too_many


@pytest.mark.parametrize(
    ("soft", "hard", "wanted"),
    [
        (1_024, 4_096, 4_096),
        (1_024, resource.RLIM_INFINITY, 2**20),
        (4_096, 4_096, None),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None),
    ],
)
def test_the_limit_is_raised_as_far_as_allowed(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, wanted: int | None
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(descriptors.resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(descriptors.resource, "setrlimit", lambda _, limits: asked.append(limits))
    raise_limit()
    assert asked == ([] if wanted is None else [(wanted, hard)])


def test_a_system_that_refuses_leaves_the_limit_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int, limits: tuple[int, int]) -> None:
        raise OSError(f"not {limits}")

    monkeypatch.setattr(descriptors.resource, "getrlimit", lambda _: (10, 20))
    monkeypatch.setattr(descriptors.resource, "setrlimit", refuse)
    raise_limit()
