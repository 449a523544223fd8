"""Explains Spark's failures in one line that a user can act on: the error of our code in Spark's workers, if it was
that.

Format:    a worker's exception arrives as text inside Java's, with its traceback. Its last line is the error.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Final

from magnetar.errors import MagnetarError, SparkFailedError

_CHARACTERS_MAX: Final = 600
_RAISED = re.compile(
    r"^[ \t]*(?P<name>(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Loss))(?:\(.*?\))?: (?P<text>.+)$", re.MULTILINE
)
_SLOW_START: Final = "Python worker failed to connect back"
_OURS: Final = "magnetar."
_SPARKS: Final = ("org.apache.spark", "py4j.", "pyspark.", "java.lang.Runtime")
_CLASS = re.compile(r"^\[(?P<name>[A-Z0-9_.]+)\] ?")
_KNOWN: Final = {
    "PATH_NOT_FOUND": "there is no such path",
    "UNABLE_TO_INFER_SCHEMA": "there are no Parquet files with rows",
    "PATH_ALREADY_EXISTS": "that path exists already",
}


@contextlib.contextmanager
def translated(doing: str) -> Iterator[None]:
    """Turns Spark's errors in the block into SparkFailedError: "{doing}: why"."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except MagnetarError:
        raise
    except (PySparkException, Py4JError) as error:
        raise SparkFailedError(f"{doing}: {reason(str(error))}") from error


def is_slow_start(text: str) -> bool:
    """Reports whether a worker's process was not ready in time; nothing was done yet."""
    return _SLOW_START in text


def reason(text: str) -> str:
    """Returns the most useful line of a failure's text."""
    found = [(match["name"], match["text"].strip()) for match in _RAISED.finditer(text)]
    ours = [said for name, said in found if name.startswith(_OURS)]
    foreign = [f"{name.rsplit('.', 1)[-1]}: {said}" for name, said in found if not name.startswith(_SPARKS)]
    said = ours[-1] if ours else foreign[-1] if foreign else _first_line(text)
    return said if len(said) <= _CHARACTERS_MAX else f"{said[:_CHARACTERS_MAX]}…"


def _first_line(text: str) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "Spark does not say why")
    named = _CLASS.match(line)
    if named is None:
        return line
    rest = line[named.end() :].split(" SQLSTATE:", maxsplit=1)[0]
    known = _KNOWN.get(named["name"])
    return f"{known}: {rest}" if known else rest
