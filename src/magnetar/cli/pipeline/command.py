"""`magnetar pipeline`: the pipelines that ship, each run by Spark on this machine or on a cluster.

`compact` can also run without Spark.

Format:    The output is a sentence or a table for people; with `--json` it is one document for programs.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import typer

from magnetar.cli.admin.client import AdminClient, default_admin_url, topic_path
from magnetar.cli.flags import AsJson
from magnetar.cli.output import EXIT_FAILED, note, print_json, print_table, printable
from magnetar.cli.pipeline.audit import audit
from magnetar.cli.pipeline.run import (
    DEFAULT_MASTER,
    DEFAULT_SERVICE_URL,
    AdminUrl,
    Master,
    SparkSettings,
    Url,
    require_spark,
    spark_session,
)
from magnetar.errors import ArgumentError, CompactionError
from magnetar.names import TopicName
from magnetar.words import counted

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


# --- commands ---------------------------------------------------------------------------------------------------------


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
            metavar="PLACE",
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
    url: Url = DEFAULT_SERVICE_URL,
    admin_url: AdminUrl = None,
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
    url: Url = DEFAULT_SERVICE_URL,
    admin_url: AdminUrl = None,
    master: Master = DEFAULT_MASTER,
    settings: SparkSettings = None,
    as_json: AsJson = False,
) -> None:
    """Read every replica of every entry from its bookie, and verify it. The exit code is 1 if a replica is
    missing or damaged.
    """
    require_spark()
    from magnetar.spark.cluster import ClusterOptions
    from magnetar.spark.pipelines.scrub.disk_speed import read_speed
    from magnetar.spark.pipelines.scrub.run import ScrubOptions, run

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
    url: Url = DEFAULT_SERVICE_URL,
    admin_url: AdminUrl = None,
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
    url: Url = DEFAULT_SERVICE_URL,
    admin_url: AdminUrl = None,
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
