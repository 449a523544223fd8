"""Prints the metadata contract as one table: each behaviour, and which kinds of store showed it in this run.

When all kinds ran, they must have shown the same list: a behaviour that one of them skips or lacks fails the run.
What a test is about travels with its report, so it arrives also from other processes when the tests are spread.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.contracts.metadata_store import MetadataStoreContract

KINDS = ("memory", "sqlite", "zookeeper")
_PROPERTY = "metadata contract"

_ran: dict[str, None] = {}
_passed: dict[str, dict[str, None]] = {}
_differ: list[str] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    owner = getattr(item, "cls", None)
    if report.when == "call" and owner is not None and issubclass(owner, MetadataStoreContract):
        kind = next(kind for kind in KINDS if kind in owner.__name__.lower())
        report.user_properties.append((_PROPERTY, (kind, item.name.removeprefix("test_").replace("_", " "))))
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    for name, value in report.user_properties:
        if name == _PROPERTY and report.when == "call":
            kind, behaviour = value
            _ran[kind] = None
            if report.passed:
                _passed.setdefault(behaviour, {})[kind] = None


def pytest_sessionfinish(session: pytest.Session) -> None:
    is_worker = hasattr(session.config, "workerinput")
    if is_worker or set(_ran) != set(KINDS) or session.config.getoption("keyword") or session.shouldstop:
        return
    _differ.extend(behaviour for behaviour, shown in _passed.items() if set(shown) != set(KINDS))
    if _differ and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _passed:
        return
    terminalreporter.section("metadata store contract: behaviours shown")
    kinds = [kind for kind in KINDS if kind in _ran]
    for behaviour in sorted(_passed):
        marks = "  ".join(kind if kind in _passed[behaviour] else "-" * len(kind) for kind in kinds)
        terminalreporter.write_line(f"{marks}  {behaviour}")
    counts = ", ".join(f"{kind} {sum(kind in shown for shown in _passed.values())}" for kind in kinds)
    terminalreporter.write_line(f"behaviours passed: {counts}" + ("; THE LISTS DIFFER" if _differ else ""))
