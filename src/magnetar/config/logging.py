"""Settings of the log."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.config.knobs import check_knobs, knob


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggingConfig:
    """What is logged, and in which form. Processes may differ."""

    level: str = knob(
        "INFO",
        "The least severe level that is logged.",
        choices=("DEBUG", "INFO", "WARNING", "ERROR"),
        bookkeeper="BOOKIE_ROOT_LOG_LEVEL",
        pulsar="PULSAR_LOG_LEVEL",
    )
    format: str = knob(
        "auto",
        "Lines for people (`human`), one JSON object a line (`json`), or by place: people on a terminal, else JSON.",
        choices=("auto", "human", "json"),
    )

    def __post_init__(self) -> None:
        check_knobs(self)
