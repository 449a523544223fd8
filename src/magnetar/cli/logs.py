"""The log of a command, on standard error.

A short command's answer is its output or its error message, so it logs nothing below ERROR unless `logging.level` was
set. A server logs as configured.
"""

from __future__ import annotations

import sys
from typing import cast

from magnetar.config.load import Effective
from magnetar.runtime.logs import LogFormat, setup_logging


def setup_short_command_log(effective: Effective) -> None:
    logging = effective.config.logging
    level = logging.level if "logging.level" in effective.origins else "ERROR"
    setup_logging(level, cast("LogFormat", logging.format), sys.stderr)


def setup_server_log(effective: Effective) -> None:
    logging = effective.config.logging
    setup_logging(logging.level, cast("LogFormat", logging.format), sys.stderr)
