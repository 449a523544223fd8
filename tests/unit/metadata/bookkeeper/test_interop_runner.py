"""The runner behind `make interop`: its last line and its exit code are what others read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from interop.runner import Part, run_parts, same
from magnetar.errors import MissingDependencyError


@asynccontextmanager
async def nothing() -> AsyncIterator[None]:
    yield None


@asynccontextmanager
async def unavailable() -> AsyncIterator[None]:
    raise MissingDependencyError("Maven is not there")
    yield None


async def this_works(_: None) -> None:
    same("number", 1, 1)


async def this_does_not(_: None) -> None:
    same("number", {"a": 1}, {"a": 2})


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.splitlines()[-1]


def test_the_last_line_counts_and_a_failure_is_in_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_parts([Part("p", nothing, [this_works, this_does_not, this_works])]) == 1
    output = capsys.readouterr().out
    assert output.splitlines()[-1] == "2 passed, 1 failed"
    assert "number.a: ours 1, Apache's 2" in output
    assert "passed  this works" in output


def test_success_is_zero(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_parts([Part("p", nothing, [this_works])]) == 0
    assert last_line(capsys) == "1 passed, 0 failed"


def test_running_nothing_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_parts([Part("p", nothing, [this_works])], "no such words") == 1
    assert last_line(capsys) == "0 passed, 0 failed"


def test_a_part_that_cannot_be_opened_is_a_failure_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_parts([Part("p", unavailable, [this_works])]) == 1
    captured = capsys.readouterr()
    assert captured.out.splitlines()[-1] == "0 passed, 1 failed"
    assert "Maven is not there" in captured.err
