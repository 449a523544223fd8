"""`magnetar pipeline`: the pipelines that ship, each run by Spark on this machine or on a cluster.

`compact` can also run without Spark. Spark is imported inside functions, so that the core alone can run every other
command.

Format:    The output is a sentence or a table for people; with `--json` it is one document for programs.
Failure:   What Spark prints goes to a temporary file. After a failure it is kept, and the error names it.
"""

from __future__ import annotations

import contextlib
import enum
import os
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import typer

from magnetar.cli.admin.client import AdminClient, AdminError, default_admin_url, topic_path
from magnetar.cli.cluster_options import DEFAULT_URL, HostAdminUrl, ServiceUrl
from magnetar.cli.output import EXIT_FAILED, AsJson, Bar, note, print_json, print_table, printable
from magnetar.errors import ArgumentError, CompactionError, SparkFailedError
from magnetar.names import TopicName
from magnetar.words import counted

Master: TypeAlias = Annotated[
    str,
    typer.Option(
        "--master", metavar="URL", help="URL of the Spark master, such as local[4], spark://host:7077 or yarn."
    ),
]
SparkSettings: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--spark", metavar="KEY=VALUE", help="Spark setting, such as spark.driver.memory=4g; may be repeated."
    ),
]
DEFAULT_MASTER = "local[*]"
_ANSWER_S: Final = 10.0


def require_spark() -> None:
    """Before anything of spark/ is imported. MissingDependencyError says what to install."""
    from magnetar.spark.session import require_pyspark

    require_pyspark()


def require_cluster(url: str, admin_url: str | None) -> None:
    """AdminError with advice if no broker answers: Spark would take a minute to start, and try for another."""
    first, *others = (admin_url or default_admin_url(url)).split(",")
    scheme = first.partition("://")[0]
    addresses = [first, *(each if "://" in each else f"{scheme}://{each}" for each in others)]
    for at, address in enumerate(addresses, 1):
        try:
            AdminClient(address, timeout_s=_ANSWER_S).get("clusters")
        except AdminError as error:
            if at == len(addresses) and not error.status:  # A status is an answer.
                raise
        else:
            return


@contextlib.contextmanager
def spark_session(
    name: str, master: str, settings: Sequence[str] | None, cluster: tuple[str, str | None] | None
) -> Iterator[tuple[Any, Bar]]:
    """A session that knows format("magnetar"), and the bar. `require_spark` comes first. `cluster`: the addresses, as
    the user gave them, of the one that must be running."""
    from magnetar.spark.session import session

    chosen = _parsed(settings or ())
    if cluster is not None:
        require_cluster(*cluster)
    with Bar() as bar, _log_file() as log:
        bar.tell("starting Spark")
        with session(name, master, chosen, log) as spark:
            from magnetar.spark import register

            register(spark)
            yield spark, bar


def _parsed(settings: Sequence[str]) -> dict[str, str]:
    found = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key.startswith("spark."):
            raise ArgumentError(f"--spark {setting}: write spark.KEY=VALUE, such as spark.driver.memory=4g")
        found[key] = value
    return found


@contextlib.contextmanager
def _log_file() -> Iterator[Path]:
    """Kept only when Spark failed."""
    handle, name = tempfile.mkstemp(prefix="magnetar-spark-", suffix=".log")
    os.close(handle)
    try:
        yield Path(name)
    except SparkFailedError as error:
        if name in str(error):
            raise
        raise SparkFailedError(f"{error} (what Spark said: {name})") from error
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    Path(name).unlink(missing_ok=True)


Kind = TypeVar("Kind", bound=enum.Enum)


def audit(
    logs: Annotated[
        list[str], typer.Argument(metavar="LOG...", help="Log files of producers and consumers, in JSON lines.")
    ],
    topics: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="TOPIC", help="Topic with the stored messages; may be repeated."),
    ] = None,
    archive: Annotated[
        str,
        typer.Option(
            "--archive", metavar="PATH", help="Archive (Parquet files) with the stored messages, instead of topics."
        ),
    ] = "",
    report: Annotated[
        str, typer.Option("--report", metavar="FILE", help="Write an HTML report with plots to this file.")
    ] = "",
    output: Annotated[
        str,
        typer.Option(
            "--output", metavar="DIR", help="Write a verdict for each message to this directory, as Parquet files."
        ),
    ] = "",
    identity: Annotated[
        str,
        typer.Option(
            "--identity",
            help="How messages are identified: by producer and sequence id (sequence), or by a property (header).",
        ),
    ] = "sequence",
    order: Annotated[
        str, typer.Option("--order", help="Required order of stored messages: by producer, by key or none.")
    ] = "producer",
    received_order: Annotated[
        str,
        typer.Option(
            "--received-order",
            help="Required order of the messages that a consumer received: by producer, by key or none.",
        ),
    ] = "producer",
    allow_missed: Annotated[
        bool, typer.Option("--allow-missed", help="Accept that a subscription did not receive every message.")
    ] = False,
    allow_unexpected: Annotated[
        bool, typer.Option("--allow-unexpected", help="Accept stored messages that appear in no log.")
    ] = False,
    outage_ms: Annotated[
        int, typer.Option("--outage-ms", min=1, help="Milliseconds without an acknowledgement that count as an outage.")
    ] = 500,
    title: Annotated[str, typer.Option("--title", help="Title of the HTML report.")] = "Delivery audit",
    url: ServiceUrl = DEFAULT_URL,
    admin_url: HostAdminUrl = None,
    master: Master = DEFAULT_MASTER,
    settings: SparkSettings = None,
    as_json: AsJson = False,
) -> None:
    """Compare the messages that were sent and acknowledged with those that were stored and received. The exit
    code is 1 if anything is wrong.
    """
    require_spark()
    from magnetar.spark.cluster import ClusterOptions
    from magnetar.spark.pipelines.audit.run import AuditOptions, Identity, Order, run
    from magnetar.spark.pipelines.audit.table import print_result
    from magnetar.spark.pipelines.jobs import translated

    cluster = ClusterOptions.of(url, admin_url)
    options = AuditOptions(
        logs=tuple(logs),
        topics=tuple(topics or ()),
        archive=archive,
        service_url=cluster.service_url,
        admin_url=cluster.admin_url,
        identity=_choice(Identity, "--identity", identity),
        order=_choice(Order, "--order", order),
        received_order=_choice(Order, "--received-order", received_order),
        allow_missed=allow_missed,
        allow_unexpected=allow_unexpected,
        outage_ms=outage_ms,
        output=output,
        report=report,
        title=title,
    )
    needed = (url, admin_url) if topics else None
    with spark_session("audit", master, settings, needed) as (spark, bar), translated("the audit failed"):
        result = run(spark, options, bar.tell)
    if as_json:
        print_json(result.as_json())
    else:
        from rich.console import Console

        print_result(result, Console())
    if result.exit_code:
        raise typer.Exit(result.exit_code)


def _choice(kinds: type[Kind], option: str, text: str) -> Kind:
    names = [str(kind.value) for kind in kinds]
    if text not in names:
        raise ArgumentError(f"{option} {text}: give {', '.join(names[:-1])} or {names[-1]}")
    return kinds(text)


_PATH = re.compile(r"(?:/|\./|\.\./|~/|(?!persistent:|non-persistent:)[A-Za-z][\w+.-]*:/)")
_LOOK_EVERY_S: Final = 0.2
_WAIT_S: Final = 3_600.0


# --- compaction without Spark -----------------------------------------------------------------------------------------


def destination(text: str) -> tuple[str, str]:
    """A topic or a path; the other one is empty. A path begins with /, ./, ../, ~/ or a scheme such as s3a://."""
    return ("", text) if _PATH.match(text) else (str(TopicName.parse(text)), "")


def compact_in_place(topic: str, url: str, admin_url: str | None) -> None:
    """Returns when the broker has done it. CompactionError if it could not."""
    client, name = AdminClient(admin_url or default_admin_url(url)), TopicName.parse(topic)
    partitions = client.get(f"{topic_path(name)}/partitions")["partitions"]
    names = [TopicName.parse(f"{name}-partition-{number}") for number in range(partitions)] or [name]
    client.put(f"{topic_path(name)}/compaction")
    until = time.monotonic() + _WAIT_S
    for each in names:
        _wait(client, each, until)


def _wait(client: AdminClient, topic: TopicName, until: float) -> None:
    while time.monotonic() < until:
        found = client.get(f"{topic_path(topic)}/compaction")
        if found["status"] == "ERROR":
            raise CompactionError(f"{topic} was not compacted: {found['lastError']}")
        if found["status"] != "RUNNING":
            return
        time.sleep(_LOOK_EVERY_S)
    raise CompactionError(
        f"{topic} is still being compacted after {_WAIT_S:g} s; the compaction continues in the broker"
    )


# --- what scrub prints ------------------------------------------------------------------------------------------------

_SHOWN_MAX: Final = 50
_TROUBLES: Final = ("missing", "damaged", "limbo", "unreachable", "refused")


def print_scrub(result: Any, disk_speed: float | None) -> None:
    """`result` is a ScrubResult."""
    rows = [
        (finding.ledger_id, _entries(finding), finding.bookie, finding.what.value, finding.why or "-")
        for finding in result.findings[:_SHOWN_MAX]
    ]
    if rows:
        print_table(("ledger", "entries", "bookie", "what", "why"), rows)
    if len(result.findings) > _SHOWN_MAX:
        note(f"{counted(len(result.findings) - _SHOWN_MAX, 'more line')}; --json prints all of them")
    for skipped in result.skipped[:_SHOWN_MAX]:
        note(f"ledger {skipped.ledger_id} was not verified: {skipped.why}")
    wrong = {name: count for name, count in result.document().items() if name in _TROUBLES and count}
    verdict = ", ".join(f"{count:,} {name}" for name, count in wrong.items()) or "nothing is wrong"
    read = f"{_megabytes(result.size_bytes)} MB in {result.seconds:.1f} s: {_megabytes(result.bytes_per_second)} MB/s"
    print(f"{counted(result.ledgers, 'ledger')}, {counted(result.replicas, 'replica')} verified, {verdict}; {read}")
    if disk_speed is not None:
        share = result.bytes_per_second / disk_speed
        print(f"the disk reads {_megabytes(disk_speed)} MB/s: the scrub has {share:.0%} of that")
    if result.marked:
        print(f"{counted(result.marked, 'ledger')} marked as under-replicated")


def _entries(finding: Any) -> str:
    return str(finding.first_entry) if finding.entries == 1 else f"{finding.first_entry}-{finding.last_entry}"


def _megabytes(count: float) -> str:
    return f"{count / 1e6:,.1f}"


Topic: TypeAlias = Annotated[
    str, typer.Argument(metavar="TOPIC", help="Topic: NAME (in public/default) or TENANT/NAMESPACE/NAME.")
]
JobId: TypeAlias = Annotated[
    str,
    typer.Option(
        "--job-id", metavar="ID", help="Idempotency key: running a job again with the same id writes nothing twice."
    ),
]

app = typer.Typer(no_args_is_help=True, help="Run Spark jobs: archive, audit, scrub, replay and compact.")
app.command()(audit)


@app.command()
def archive(
    topic: Topic,
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="Directory for the Parquet files: a local path, hdfs://… or s3a://….")
    ],
    begin: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="POSITION",
            help="Position at which a new archive starts: earliest, latest, a message id, or a time.",
        ),
    ] = "earliest",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Continue to archive new messages until interrupted.")
    ] = False,
    every: Annotated[
        int, typer.Option("--every", min=1, metavar="SECONDS", help="Seconds between two runs with --follow.")
    ] = 60,
    batch: Annotated[
        int,
        typer.Option(
            "--batch", min=1, metavar="MESSAGES", help="Number of messages that are written and committed together."
        ),
    ] = 1_000_000,
    subscription: Annotated[
        str,
        typer.Option(
            "--subscription",
            metavar="NAME",
            help="Subscription that keeps messages in the topic until they are archived.",
        ),
    ] = "",
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Continue even if messages were deleted before they were archived.")
    ] = False,
    url: ServiceUrl = DEFAULT_URL,
    admin_url: HostAdminUrl = None,
    master: Master = DEFAULT_MASTER,
    settings: SparkSettings = None,
    as_json: AsJson = False,
) -> None:
    """Write a topic to Parquet files, each message exactly once. The next run continues where the last one
    stopped.
    """
    require_spark()
    from magnetar.spark.cluster import ClusterOptions
    from magnetar.spark.pipelines.archive import ArchiveOptions, run

    options = ArchiveOptions(
        cluster=ClusterOptions.of(url, admin_url),
        topic=topic,
        path=path,
        start=begin,
        follow=follow,
        every_s=every,
        batch_messages=batch,
        subscription=subscription,
        fail_on_data_loss=not accept_loss,
    )
    with spark_session("archive", master, settings, (url, admin_url)) as (spark, bar):
        result = run(spark, options, bar)
    _print(
        result.document(),
        f"{counted(result.messages, 'message')} of {result.topic} archived; {counted(result.files, 'file')} in "
        f"{result.path}",
        as_json,
    )


@app.command()
def scrub(
    ledgers: Annotated[
        list[int] | None, typer.Option("--ledger", metavar="ID", min=0, help="Check only this ledger; may be repeated.")
    ] = None,
    mark: Annotated[
        bool,
        typer.Option(
            "--mark",
            help="Mark ledgers with bad replicas as under-replicated, so that BookKeeper's auto-recovery repairs them.",
        ),
    ] = False,
    disk: Annotated[
        Path | None,
        typer.Option(
            "--disk",
            metavar="DIR",
            help="Directory of a bookie on this machine: compare the speed of the scrub with that of its disk.",
        ),
    ] = None,
    url: ServiceUrl = DEFAULT_URL,
    admin_url: HostAdminUrl = None,
    master: Master = DEFAULT_MASTER,
    settings: SparkSettings = None,
    as_json: AsJson = False,
) -> None:
    """Read every replica of every entry from its bookie, and verify it. The exit code is 1 if a replica is
    missing or damaged.
    """
    require_spark()
    from magnetar.spark.cluster import ClusterOptions
    from magnetar.spark.pipelines.scrub import ScrubOptions, read_speed, run

    options = ScrubOptions(
        cluster=ClusterOptions.of(url, admin_url), ledgers=tuple(dict.fromkeys(ledgers or ())), mark=mark
    )
    speed = read_speed(disk) if disk is not None else None  # Before: files that were just read would come from memory.
    with spark_session("scrub", master, settings, (url, admin_url)) as (spark, bar):
        result = run(spark, options, bar)
    document = result.document() | ({} if speed is None else {"diskBytesPerSecond": round(speed)})
    if as_json:
        print_json(document)
    else:
        print_scrub(result, speed)
    if not result.is_clean:
        raise typer.Exit(EXIT_FAILED)


@app.command()
def replay(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="Parquet files to publish: an archive, a directory or a glob.")
    ],
    topic: Topic,
    job_id: JobId = "",
    value_column: Annotated[
        str, typer.Option("--value-column", metavar="NAME", help="Column with the value of each message.")
    ] = "value",
    key_column: Annotated[
        str, typer.Option("--key-column", metavar="NAME", help="Column with the key of each message. Default: `key`.")
    ] = "",
    where: Annotated[
        str, typer.Option("--where", metavar="SQL", help="Publish only the rows for which this SQL condition is true.")
    ] = "",
    keep_partitions: Annotated[
        bool,
        typer.Option(
            "--keep-partitions",
            help="Publish each message to the partition it came from. Default: choose the partition by the key.",
        ),
    ] = False,
    url: ServiceUrl = DEFAULT_URL,
    admin_url: HostAdminUrl = None,
    master: Master = DEFAULT_MASTER,
    settings: SparkSettings = None,
    as_json: AsJson = False,
) -> None:
    """Publish the rows of Parquet files to a topic: either all of them or none, and only once for each job id."""
    require_spark()
    from magnetar.spark.cluster import ClusterOptions
    from magnetar.spark.pipelines.replay import ReplayOptions, run

    options = ReplayOptions(
        cluster=ClusterOptions.of(url, admin_url),
        path=path,
        topic=topic,
        job_id=job_id,
        value_column=value_column,
        key_column=key_column,
        where=where,
        keep_partitions=keep_partitions,
    )
    with spark_session("replay", master, settings, (url, admin_url)) as (spark, bar):
        result = run(spark, options, bar)
    done = f"{counted(result.messages, 'message')} published to {result.topic} by job {result.job_id}"
    again = f"job {result.job_id} was done before, nothing was published; another --job-id publishes it again"
    _print(result.document(), again if result.was_done else done, as_json)


@app.command()
def compact(
    topic: Topic,
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="TOPIC|PATH", help="Destination: a topic, or a path such as ./snapshot or s3a://…."
        ),
    ] = "",
    in_place: Annotated[
        bool,
        typer.Option(
            "--in-place", help="Let the broker compact the topic itself, and wait until it is done. Needs no Spark."
        ),
    ] = False,
    keep_unkeyed: Annotated[bool, typer.Option("--keep-unkeyed", help="Also write messages without a key.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing files at the path.")] = False,
    job_id: JobId = "",
    url: ServiceUrl = DEFAULT_URL,
    admin_url: HostAdminUrl = None,
    master: Master = DEFAULT_MASTER,
    settings: SparkSettings = None,
    as_json: AsJson = False,
) -> None:
    """Write the last message of each key to another topic, or to Parquet files."""
    if in_place == bool(to):
        raise ArgumentError("give one of --to TOPIC, --to PATH or --in-place")
    if in_place:
        compact_in_place(topic, url, admin_url)
        _print({"topic": topic, "to": topic}, f"{topic} is compacted", as_json)
        return
    to_topic, to_path = destination(to)
    require_spark()
    from magnetar.spark.cluster import ClusterOptions
    from magnetar.spark.pipelines.compact import CompactOptions, run

    options = CompactOptions(
        cluster=ClusterOptions.of(url, admin_url),
        topic=topic,
        to_topic=to_topic,
        to_path=to_path,
        job_id=job_id,
        keep_unkeyed=keep_unkeyed,
        overwrite=overwrite,
    )
    with spark_session("compact", master, settings, (url, admin_url)) as (spark, bar):
        result = run(spark, options, bar)
    done = f"{counted(result.messages, 'key')} of {result.topic} written to {result.to}"
    again = f"job {job_id} was done before, nothing was written to {result.to}; another --job-id writes it again"
    _print(result.document(), again if result.was_done else done, as_json)


def _print(document: dict[str, Any], sentence: str, as_json: bool) -> None:
    if as_json:
        print_json(document)
    else:
        print(printable(sentence))
