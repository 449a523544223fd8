from __future__ import annotations

import signal

import pytest

pytest.register_assert_rewrite("magnetar.testing.contracts")  # Before they are imported, for messages that explain.
pytest_plugins = ["tests.contract_report"]

# A background job of a shell ignores SIGINT, and its children inherit that: tests that send it need the default back.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
