"""A pytest plugin: tests reported as checks are (interop/runner.py), one line each as soon as it is done.

    python -m pytest -p interop.spark.reporting --check-words="…" --check-tally=FILE interop/spark/suite

FILE gets {"passed": n, "failed": m}. A test that finds out by itself that it cannot run counts as failed. One whose
mark says what it needs from the machine (a browser) is left out where that is missing, and named with its reason.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from interop.runner import Tally


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--check-words", default="", help="only tests whose sentence has these words in it")
    parser.addoption("--check-tally", default="", help="where the counts are written")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Reporter(config), "interop-reporter")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    words = str(config.getoption("--check-words")).replace("_", " ")
    items[:] = [item for item in items if words in sentence(item.nodeid)]


def sentence(nodeid: str) -> str:
    """`…/test_sql.py::test_a_view_works[bookie]` → `a view works [bookie]`."""
    name = nodeid.rpartition("::")[2].removeprefix("test_")
    words, bracket, parameters = name.partition("[")
    return f"{words.replace('_', ' ')} {bracket}{parameters}".strip()


class _Reporter:
    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._tally = Tally()
        self._seconds = 0.0
        self._problem: str | None = None
        self._is_left_out = False

    def pytest_runtest_logstart(self) -> None:
        self._seconds, self._problem, self._is_left_out = 0.0, None, False

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
            self._tally.passed += 1
            print(f"  passed  {sentence(report.nodeid)} ({self._seconds:.1f} s)", flush=True)
        else:
            self._tally.failed += 1
            print(f"  FAILED  {sentence(report.nodeid)}\n{_indented(self._problem)}", flush=True)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._tally.failed += 1
            print(f"  FAILED  {report.nodeid} cannot be collected\n{_indented(report.longreprtext)}", flush=True)

    def pytest_sessionfinish(self) -> None:
        place = str(self._config.getoption("--check-tally"))
        if place:
            Path(place).write_text(json.dumps({"passed": self._tally.passed, "failed": self._tally.failed}))


def _indented(text: str) -> str:
    return "\n".join(f"          {line}" for line in text.splitlines())
