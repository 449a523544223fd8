from __future__ import annotations

import logging
import signal
from collections.abc import Generator, Iterator

import hypothesis
import pytest

pytest.register_assert_rewrite("tests.contracts")  # Before they are imported, for messages that explain.
pytest_plugins = ["tests.contract_report", "tests.virtual_time"]

# How long one example takes says nothing on a busy machine; pytest-timeout ends a test that hangs.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

# A background job of a shell ignores SIGINT, and its children inherit that: tests that send it need the default back.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """A command that runs inside a test sets up logging for its process, which is ours."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    for handler in [handler for handler in root.handlers if handler not in handlers]:
        root.removeHandler(handler)
        handler.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A report may travel to another process, as UTF-8; what a test printed or logged need not be that."""
    report = yield
    report.sections = [(name, text.encode(errors="replace").decode()) for name, text in report.sections]
    return report
