"""Prints the metadata contract as one table: each behaviour, and which kinds of store showed it in this run.

When all kinds ran, they must have shown the same list: a behaviour that one of them skips or lacks fails the run.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest

from magnetar.testing.contracts.metadata_store import MetadataStoreContract

KINDS = ("memory", "sqlite", "zookeeper")

_collected: dict[str, str] = {}
_passed: dict[str, dict[str, None]] = {}
_differ: list[str] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        owner = getattr(item, "cls", None)
        if owner is not None and issubclass(owner, MetadataStoreContract):
            kind = next(kind for kind in KINDS if kind in owner.__name__.lower())
            _collected[item.nodeid] = kind


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    kind = _collected.get(item.nodeid)
    if kind is not None and report.when == "call" and report.passed:
        behaviour = item.name.removeprefix("test_").replace("_", " ")
        _passed.setdefault(behaviour, {})[kind] = None
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    kinds = set(_collected.values())
    if kinds != set(KINDS) or session.config.getoption("keyword") or session.shouldstop:
        return
    _differ.extend(behaviour for behaviour, shown in _passed.items() if set(shown) != kinds)
    if _differ and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _passed:
        return
    terminalreporter.section("metadata store contract: behaviours shown")
    kinds = [kind for kind in KINDS if kind in set(_collected.values())]
    for behaviour in sorted(_passed):
        marks = "  ".join(kind if kind in _passed[behaviour] else "-" * len(kind) for kind in kinds)
        terminalreporter.write_line(f"{marks}  {behaviour}")
    counts = ", ".join(f"{kind} {sum(kind in shown for shown in _passed.values())}" for kind in kinds)
    terminalreporter.write_line(f"behaviours passed: {counts}" + ("; THE LISTS DIFFER" if _differ else ""))
