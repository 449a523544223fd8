"""Kafka's own command line tools, each a Java process that ends by itself."""

from __future__ import annotations

import subprocess
from pathlib import Path

from interop.jars import KAFKA
from interop.java_program import QUICK_JVM, java_command

TOPICS = "org.apache.kafka.tools.TopicCommand"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
CONSOLE_PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
PRODUCER_PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
VERIFIABLE_PRODUCER = "org.apache.kafka.tools.VerifiableProducer"
VERIFIABLE_CONSUMER = "org.apache.kafka.tools.VerifiableConsumer"
_TIMEOUT_S = 90
_LOGGING = """status = error
appender.err.type = Console
appender.err.name = err
appender.err.target = SYSTEM_ERR
rootLogger.level = warn
rootLogger.appenderRef.err.ref = err
"""
_SHOWN_CHARACTERS = 3_000


class Tools:
    def __init__(self, bootstrap: str, directory: Path) -> None:
        self.bootstrap = bootstrap
        self._logging = directory / "tools-log4j2.properties"
        self._logging.write_text(_LOGGING)

    def command(self, tool: str, *arguments: str) -> list[str | Path]:
        jvm = ("-Xmx256m", "-XX:+UseSerialGC", QUICK_JVM)
        where = ("--bootstrap-server", self.bootstrap)
        return java_command(tool, *where, *arguments, jvm=jvm, logging=self._logging, jars=KAFKA)

    def run(self, tool: str, *arguments: str, given: str = "") -> str:
        """What it printed; an assertion if it failed."""
        done = subprocess.run(
            self.command(tool, *arguments), input=given, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
        assert done.returncode == 0, f"{tool} {arguments}: {(done.stdout + done.stderr)[-_SHOWN_CHARACTERS:]}"
        return done.stdout
