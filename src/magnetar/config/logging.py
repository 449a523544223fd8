"""Settings of log output."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.config.knobs import check_knobs, knob


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggingConfig:
    """Log output.

    Values may differ between processes. Changes need a restart.
    """

    level: str = knob(
        "INFO",
        "Least severe level that is logged.",
        choices=("DEBUG", "INFO", "WARNING", "ERROR"),
        bookkeeper="BOOKIE_ROOT_LOG_LEVEL",
        pulsar="PULSAR_LOG_LEVEL",
    )
    format: str = knob(
        "auto",
        "Format of log lines: readable text (`human`), one JSON object per line (`json`), or text on a terminal and "
        "JSON elsewhere (`auto`).",
        choices=("auto", "human", "json"),
    )

    def __post_init__(self) -> None:
        check_knobs(self)
