"""A pytest plugin: one line for each check as soon as it is done, and `N passed, M failed` as the last line.

    python -m pytest interop/bookie --check fenced

A test that finds out by itself that it cannot run counts as failed. One whose mark says what it needs from the machine
(a browser) is left out where that is missing, and named with its reason. A folder without a check is a failure, too,
unless words were asked for.
"""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--check", default="", metavar="WORDS", help="only tests whose sentence has these words in it")


def pytest_configure(config: pytest.Config) -> None:
    config.option.tbstyle = "short"
    config.pluginmanager.register(_Reporter(), "interop-reporter")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    words = str(config.getoption("--check")).replace("_", " ")
    items[:] = [item for item in items if words in sentence(item.nodeid)]


def sentence(nodeid: str) -> str:
    """`…/test_sql.py::test_a_view_works[bookie]` → `a view works [bookie]`."""
    name = nodeid.rpartition("::")[2] if "[" not in nodeid else nodeid[nodeid.rindex("::", 0, nodeid.index("[")) + 2 :]
    words, bracket, parameters = name.removeprefix("test_").partition("[")
    return f"{words.replace('_', ' ')} {bracket}{parameters}".strip()


class _Reporter:
    def __init__(self) -> None:
        self._passed = self._failed = 0
        self._part = ""
        self._seconds = 0.0
        self._problem: str | None = None
        self._is_left_out = False

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if self._failed or session.config.getoption("--check"):
            return
        for folder in [Path(argument).resolve() for argument in session.config.args if Path(argument).is_dir()]:
            if not any(item.path.is_relative_to(folder) for item in session.items):
                self._fail(f"{folder.name} has no check at all", "")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._seconds, self._problem, self._is_left_out = 0.0, None, False
        part = nodeid.partition("::")[0].rpartition("/")[0].partition("/")[0]
        if part != self._part:
            self._part = part
            print(f"{part}:", flush=True)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds += report.duration
        if report.failed or report.skipped:
            self._problem = (
                f"skipped: {report.longrepr[2]}" if isinstance(report.longrepr, tuple) else report.longreprtext
            )
            self._is_left_out = report.skipped and report.when == "setup" and "skipif" in report.keywords
        if report.when != "teardown":
            return
        if self._is_left_out:
            print(f"  left out  {sentence(report.nodeid)}: {self._problem}", flush=True)
        elif self._problem is None:
            self._passed += 1
            print(f"  passed  {sentence(report.nodeid)} ({self._seconds:.1f} s)", flush=True)
        else:
            self._fail(sentence(report.nodeid), self._problem)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._fail(f"{report.nodeid} cannot be collected", report.longreprtext)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._failed and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        print(f"{self._passed} passed, {self._failed} failed", flush=True)

    def _fail(self, what: str, problem: str) -> None:
        self._failed += 1
        print("\n".join([f"  FAILED  {what}", *(f"          {line}" for line in problem.splitlines())]), flush=True)
