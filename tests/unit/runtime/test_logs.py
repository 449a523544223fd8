"""What a log line looks like, and that a stuck stream does not stop the process."""

from __future__ import annotations

import io
import json
import logging
import re
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from magnetar.runtime.logs import (
    HumanFormatter,
    JsonFormatter,
    LogFormat,
    QueuedStreamHandler,
    setup_logging,
)

DEADLINE_S = 10


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class StuckStream(io.StringIO):
    """A pipe that is not read until `reading` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.is_stuck = threading.Event()
        self.reading = threading.Event()

    def write(self, text: str) -> int:
        self.is_stuck.set()
        assert self.reading.wait(DEADLINE_S)
        return super().write(text)


@pytest.fixture
def log() -> Iterator[logging.Logger]:
    """A logger of its own below the root, whose handlers and level are put back."""
    root = logging.getLogger()
    level = root.level
    yield logging.getLogger("magnetar.test")
    for handler in [one for one in root.handlers if isinstance(one, QueuedStreamHandler)]:
        root.removeHandler(handler)
        handler.close()
    root.setLevel(level)


def lines_of(stream: io.StringIO, handler: logging.Handler) -> list[str]:
    handler.flush()
    return stream.getvalue().splitlines()


def test_json_line_has_time_level_logger_message_and_fields(log: logging.Logger) -> None:
    stream = io.StringIO()
    handler = setup_logging("INFO", "json", stream)
    log.info("ledger %s", "fenced", extra={"ledger": 5, "bookies": ["b1", "b2"]})
    (line,) = lines_of(stream, handler)
    found = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", found.pop("ts"))
    assert found == {
        "level": "INFO",
        "logger": "magnetar.test",
        "message": "ledger fenced",
        "ledger": 5,
        "bookies": ["b1", "b2"],
    }


def test_json_time_is_utc_with_milliseconds() -> None:
    record = logging.makeLogRecord({"created": 1_700_000_000.1239, "msg": "x"})
    assert json.loads(JsonFormatter().format(record))["ts"] == "2023-11-14T22:13:20.123Z"


def test_json_exception_is_one_string_on_the_same_line(log: logging.Logger) -> None:
    stream = io.StringIO()
    handler = setup_logging("INFO", "json", stream)
    try:
        raise ValueError("broken\nthing")
    except ValueError:
        log.exception("it failed")
    (line,) = lines_of(stream, handler)
    assert json.loads(line)["exception"].startswith("Traceback")
    assert json.loads(line)["exception"].endswith("ValueError: broken\nthing")


def test_json_takes_every_value_and_stays_json(log: logging.Logger) -> None:
    stream = io.StringIO()
    handler = setup_logging("INFO", "json", stream)
    odd = {"rate": float("nan"), "key": b"\xff", "by": {1: float("inf")}, "kind": ValueError("x"), "level": 3}
    log.info("odd \ud800", extra=odd)
    (line,) = lines_of(stream, handler)
    found = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert found["rate"] == "nan"
    assert found["key"] == "b'\\xff'"
    assert found["by"] == {"1": "inf"}
    assert found["kind"] == "x"
    assert (found["level"], found["level_"]) == ("INFO", 3)


def test_human_line_is_short_and_quotes_what_needs_it() -> None:
    record = logging.makeLogRecord({"name": "magnetar.bookie", "levelname": "INFO", "msg": "ledger fenced"})
    record.ledger = 5
    record.reason = "took over"
    line = HumanFormatter().format(record)
    assert re.fullmatch(
        r'\d\d:\d\d:\d\d\.\d{3} INFO {4}magnetar\.bookie {2}ledger fenced {2}ledger=5 reason="took over"', line
    )


def test_human_message_cannot_forge_a_second_line() -> None:
    record = logging.makeLogRecord({"msg": "from a peer: \n12:00:00 INFO forged\x1b[2J"})
    record.peer = "a\nb\x9b2J"
    line = HumanFormatter().format(record)
    assert "\n" not in line
    assert line.isprintable()


def test_human_exception_follows_below() -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        record = logging.makeLogRecord({"msg": "it failed", "exc_info": sys.exc_info()})
    lines = HumanFormatter().format(record).splitlines()
    assert lines[1].startswith("Traceback")
    assert lines[-1] == "ValueError: broken"


@pytest.mark.parametrize(
    ("log_format", "stream", "is_json"),
    [
        ("auto", Terminal(), False),
        ("auto", io.StringIO(), True),
        ("json", Terminal(), True),
        ("human", io.StringIO(), False),
    ],
)
def test_format_auto_is_for_people_on_a_terminal_only(
    log: logging.Logger, log_format: LogFormat, stream: io.StringIO, is_json: bool
) -> None:
    handler = setup_logging("INFO", log_format, stream)
    log.info("hello")
    (line,) = lines_of(stream, handler)
    assert line.startswith("{") is is_json


def test_lines_below_the_level_are_not_written(log: logging.Logger) -> None:
    stream = io.StringIO()
    handler = setup_logging("WARNING", "json", stream)
    log.info("quiet")
    log.warning("loud")
    assert [json.loads(line)["message"] for line in lines_of(stream, handler)] == ["loud"]


def test_setting_up_again_replaces_the_stream_and_leaves_other_handlers(log: logging.Logger) -> None:
    others = list(logging.getLogger().handlers)
    first, second = io.StringIO(), io.StringIO()
    setup_logging("INFO", "json", first)
    handler = setup_logging("INFO", "json", second)
    log.info("once")
    assert len(lines_of(second, handler)) == 1
    assert first.getvalue() == ""
    assert [one for one in logging.getLogger().handlers if one is not handler] == others


def test_stuck_stream_drops_lines_counts_them_and_says_so() -> None:
    stream = StuckStream()
    handler = QueuedStreamHandler(stream, queue_lines_max=3)
    handler.setFormatter(JsonFormatter())
    handler.handle(logging.makeLogRecord({"msg": "0"}))
    assert stream.is_stuck.wait(DEADLINE_S)
    for number in range(1, 9):
        handler.handle(logging.makeLogRecord({"msg": str(number)}))
    assert handler.dropped_lines == 5
    stream.reading.set()
    handler.close()
    found = [json.loads(line) for line in stream.getvalue().splitlines()]
    notices = [line for line in found if "dropped_lines" in line]
    assert [line["message"] for line in found if line not in notices] == ["0", "1", "2", "3"]
    assert [line["dropped_lines"] for line in notices] == [5]


def test_sign_the_terminal_cannot_show_is_escaped() -> None:
    raw = io.BytesIO()
    handler = QueuedStreamHandler(io.TextIOWrapper(raw, encoding="ascii"))
    handler.setFormatter(HumanFormatter())
    handler.handle(logging.makeLogRecord({"msg": "π"}))
    handler.flush()
    assert b"\\u03c0" in raw.getvalue()
    handler.close()


def test_stream_whose_reader_is_gone_harms_nobody() -> None:
    stream = io.StringIO()
    stream.close()
    handler = QueuedStreamHandler(stream)
    handler.handle(logging.makeLogRecord({"msg": "unheard"}))
    handler.close()
    assert handler.failed_writes >= 1


def test_last_lines_before_the_end_of_the_process_are_written() -> None:
    program = (
        "import logging, sys\n"
        "from magnetar.runtime.logs import setup_logging\n"
        "setup_logging('INFO', 'json', sys.stderr)\n"
        "for n in range(1000): logging.getLogger('x').info('line', extra={'n': n})\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, timeout=60)
    assert [json.loads(line)["n"] for line in done.stderr.splitlines()] == list(range(1000))
