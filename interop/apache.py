"""Apache's bookies and `bookkeeper shell` from the jars that Maven got.

Settings: a JVM gets those of Apache's scripts with half the memory, a bookie its defaults, journal sync among them.
          In checks its code is compiled quickly; where speed is compared, it is compiled as in those scripts.
          `listeningInterface` matters: without it a bookie listens everywhere, whatever it advertises.
Storage:  DB is what Pulsar's bookies use, and what speed is compared with. It never answers a request for the list of a
          ledger's entries; SORTED, BookKeeper's default, does, so the checks run on that.
Shell:    prints its answers through the logger, and the values as the context of a line: the pattern needs %X.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from interop.bookies import ROOT, Bookie
from interop.java_program import QUICK_JVM, java_command
from magnetar.errors import ProcessFailedError
from magnetar.testing.processes.child import free_port

HOST = "127.0.0.1"
DB = "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage"
SORTED = "org.apache.bookkeeper.bookie.SortedLedgerStorage"
_BOOKIE_JVM = (
    "-Xms512m",
    "-Xmx512m",
    "-XX:MaxDirectMemorySize=1g",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=10",
    "-XX:+ParallelRefProcEnabled",
    "-XX:+PerfDisableSharedMem",
    "-Dio.netty.tryReflectionSetAccessible=true",
)
_SHELL_JVM = ("-Xmx256m", QUICK_JVM)
_SHELL_TIMEOUT_S = 60
_LOGGING = """status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{HH:mm:ss.SSS} %-5p [%t] %c{1}: %m %X%n%throwable
rootLogger.level = LEVEL
rootLogger.appenderRef.out.ref = out
logger.shell.name = org.apache.bookkeeper.bookie.BookieShell
logger.shell.level = info
logger.commands.name = org.apache.bookkeeper.tools.cli
logger.commands.level = info
"""


class ApacheBookie(Bookie):
    def __init__(
        self, directory: Path, zookeeper: str, *, storage: str = DB, jvm: Sequence[str] = (), **settings: object
    ) -> None:
        """The flags of the virtual machine come after those of Apache's scripts; the settings after those below."""
        super().__init__(directory, zookeeper)
        self._settings = settings
        self._port = free_port(HOST)
        self._storage = storage
        self._jvm = jvm

    @property
    def id(self) -> str:
        return f"{HOST}:{self._port}"

    def command(self) -> Sequence[str | Path]:
        settings = write_settings(
            self.directory / "bookie.conf",
            bookiePort=self._port,
            advertisedAddress=HOST,
            listeningInterface="lo",
            allowLoopback="true",
            metadataServiceUri=metadata_uri(self.zookeeper),
            journalDirectories=self.directory / "journal",
            ledgerDirectories=self.directory / "ledgers",
            ledgerStorageClass=self._storage,
            **self._settings,
        )
        logging = write_logging(self.directory, "info")
        jvm = (*_BOOKIE_JVM, *self._jvm)
        return java_command("org.apache.bookkeeper.server.Main", "--conf", settings, jvm=jvm, logging=logging)


def apache_bookie(directory: Path, zookeeper: str) -> Bookie:
    """As Pulsar runs them."""
    return ApacheBookie(directory, zookeeper)


def quick_apache_bookie(directory: Path, zookeeper: str) -> Bookie:
    """Its storage is that of Pulsar; it starts sooner."""
    return ApacheBookie(directory, zookeeper, jvm=(QUICK_JVM,))


def quick_sorted_apache_bookie(directory: Path, zookeeper: str) -> Bookie:
    """One that can list the entries of a ledger; it starts sooner."""
    return ApacheBookie(directory, zookeeper, storage=SORTED, jvm=(QUICK_JVM,))


def metadata_uri(zookeeper: str) -> str:
    return f"zk+hierarchical://{zookeeper}{ROOT}"


def write_settings(path: Path, **settings: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return path


def write_logging(directory: Path, level: str) -> Path:
    path = directory / "log4j2.properties"
    path.write_text(_LOGGING.replace("LEVEL", level))
    return path


def shell(directory: Path, zookeeper: str, *words: str, bookie_id: str | None = None) -> str:
    """What `bookkeeper shell WORDS` prints; with an id, that bookie's own shell. ProcessFailedError if it fails."""
    settings: dict[str, object] = {"metadataServiceUri": metadata_uri(zookeeper), "allowLoopback": "true"}
    if bookie_id is not None:
        settings["bookieId"] = bookie_id
    directory.mkdir(parents=True, exist_ok=True)
    command = java_command(
        "org.apache.bookkeeper.bookie.BookieShell",
        "-conf",
        write_settings(directory / "shell.conf", **settings),
        *words,
        jvm=_SHELL_JVM,
        logging=write_logging(directory, "error"),
    )
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SHELL_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise ProcessFailedError(f"bookkeeper shell {words[0]} did not end within {_SHELL_TIMEOUT_S} s") from None
    if done.returncode:
        lines = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise ProcessFailedError(f"bookkeeper shell {words[0]} ended with code {done.returncode}:\n{lines}")
    return done.stdout
