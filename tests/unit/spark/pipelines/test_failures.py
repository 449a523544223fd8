"""One line of a page of tracebacks."""

from __future__ import annotations

import pytest

from magnetar.spark.pipelines.jobs import reason

STREAM = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted. SQLSTATE: XXKST
=== Streaming Query ===
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1, in main
    process()
  File "source.py", line 2, in read
ValueError: not this one

During handling of the above exception, another exception occurred:

magnetar.errors.TopicNotFoundError: there is no topic persistent://public/default/x: make it first

\tat org.apache.spark.scheduler.Task.run(Task.scala:1)
Caused by: java.io.IOException: broken
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (STREAM, "there is no topic persistent://public/default/x: make it first"),
        ("Job aborted\nTraceback\n  x\nZeroDivisionError: division by zero\n", "ZeroDivisionError: division by zero"),
        (
            "[PATH_NOT_FOUND] Path does not exist: file:/x. SQLSTATE: 42K03",
            "there is no such path: Path does not exist: file:/x.",
        ),
        ("[OTHER_THING] Something else. SQLSTATE: 1", "Something else."),
        ("\n\n", "Spark does not say why"),
        ("plain", "plain"),
    ],
)
def test_the_line_that_says_most_is_found(text: str, said: str) -> None:
    assert reason(text) == said


def test_a_long_line_is_cut() -> None:
    assert len(reason("x" * 10_000)) == 601
