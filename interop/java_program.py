"""Java programs on Apache's jars: the command line of any, and one that answers JSON lines, one at a time.

It ends with us.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from interop.jars import BOOKKEEPER, JAVA_MIN, Jars, class_folder, jar_folder
from magnetar.errors import ProcessFailedError
from magnetar.runtime.java import find_java
from magnetar.testing.processes.child import Child

QUICK_JVM = "-XX:TieredStopAtLevel=1"
"""For a program that runs for a minute or two: to compile well would take longer than its work."""
_ANSWER_TIMEOUT_S = 60
_OPENS = ("java.base/java.nio", "java.base/jdk.internal.misc", "java.base/java.io", "java.base/java.util.zip")
_LOGGING = """status = off
appender.err.type = Console
appender.err.name = err
appender.err.target = SYSTEM_ERR
appender.err.layout.type = PatternLayout
appender.err.layout.pattern = %d{HH:mm:ss.SSS} %-5p %c{1}: %m %X%n%throwable
rootLogger.level = warn
rootLogger.appenderRef.err.ref = err
"""


class ApacheError(Exception):
    """What Apache's class threw: its name and message."""


def java_command(
    main_class: str,
    *arguments: str | Path,
    jvm: Sequence[str],
    logging: Path,
    with_ours: bool = False,
    jars: Jars = BOOKKEEPER,
) -> list[str | Path]:
    """Runs a class of Apache's jars, or with ours one of the Java programs that are compiled against them."""
    theirs = f"{jar_folder(jars)}/*"
    return [
        find_java(JAVA_MIN).executable,
        *jvm,
        "-Djava.net.preferIPv4Stack=true",
        f"-Dlog4j2.configurationFile={logging}",
        *(f"--add-opens={module}=ALL-UNNAMED" for module in _OPENS),
        "-cp",
        f"{class_folder(jars)}:{theirs}" if with_ours else theirs,
        main_class,
        *arguments,
    ]


class JavaProgram:
    def __init__(
        self,
        main_class: str,
        directory: Path,
        *,
        jvm: Sequence[str] = ("-Xmx256m", QUICK_JVM),
        answer_timeout_s: float = _ANSWER_TIMEOUT_S,
        jars: Jars = BOOKKEEPER,
    ) -> None:
        logging = directory / "log4j2.properties"
        logging.write_text(_LOGGING)
        self._answer_timeout_s = answer_timeout_s
        self._child = Child(
            java_command(main_class, jvm=jvm, logging=logging, with_ours=True, jars=jars),
            log=directory / f"{main_class}.log",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._turn = asyncio.Lock()

    async def ask(self, op: str, **arguments: Any) -> Any:
        """The result; ApacheError for what was thrown there."""
        line = json.dumps({"op": op, **arguments}) + "\n"
        async with self._turn, asyncio.timeout(self._answer_timeout_s):
            answer = json.loads(await asyncio.to_thread(self._exchange, line.encode()))
        if "error" in answer:
            raise ApacheError(answer["error"])
        return answer["result"]

    def _exchange(self, line: bytes) -> bytes:
        popen = self._child.popen
        assert popen.stdin is not None
        assert popen.stdout is not None
        try:
            popen.stdin.write(line)
            popen.stdin.flush()
            answer: bytes = popen.stdout.readline()
        except OSError as error:
            raise ProcessFailedError(f"the Java program does not listen: {error}; see {self._child.log}") from error
        if not answer:
            raise ProcessFailedError(f"the Java program has ended; see {self._child.log}")
        return answer

    def close(self) -> None:
        self._child.kill()
        for pipe in (self._child.popen.stdin, self._child.popen.stdout):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()
