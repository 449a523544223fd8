"""`magnetar pipeline`: the pipelines that ship, each run by Spark on this machine or on a cluster.

Output:    a sentence or a table for people, `--json` one document for programs.
Read next: docs/pipelines.md; spark/pipelines/
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from magnetar.cli.flags import AsJson
from magnetar.cli.output import EXIT_FAILED, print_json, printable
from magnetar.cli.pipeline_audit import audit
from magnetar.cli.pipeline_compacting import compact_in_place, destination
from magnetar.cli.pipeline_running import (
    DEFAULT_MASTER,
    DEFAULT_SERVICE_URL,
    AdminUrl,
    Master,
    SparkSettings,
    Url,
    require_spark,
    spark_session,
)
from magnetar.cli.pipeline_scrub import print_scrub
from magnetar.errors import ArgumentError

Topic: TypeAlias = Annotated[str, typer.Argument(metavar="TOPIC", help="NAME, or TENANT/NAMESPACE/NAME.")]
JobId: TypeAlias = Annotated[
    str, typer.Option("--job-id", metavar="ID", help="Whoever runs a job of this id again writes nothing twice.")
]

app = typer.Typer(no_args_is_help=True, help="Archive, audit, scrub, replay and compact, on Spark.")
app.command()(audit)


@app.command()
def archive(
    topic: Topic,
    path: Annotated[str, typer.Argument(metavar="PATH", help="A directory of this machine, or hdfs://…, s3a://….")],
    begin: Annotated[str, typer.Option("--from", metavar="PLACE", help="Where a new archive begins.")] = "earliest",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until interrupted.")] = False,
    every: Annotated[int, typer.Option("--every", min=1, metavar="SECONDS", help="With --follow: how often.")] = 60,
    batch: Annotated[
        int, typer.Option("--batch", min=1, metavar="MESSAGES", help="So many are written and committed at once.")
    ] = 1_000_000,
    subscription: Annotated[
        str, typer.Option("--subscription", metavar="NAME", help="Keeps in the topic what is not archived yet.")
    ] = "",
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Go on if messages were deleted before they were archived.")
    ] = False,
    url: Url = DEFAULT_SERVICE_URL,
    admin_url: AdminUrl = None,
    master: Master = DEFAULT_MASTER,
    settings: SparkSettings = None,
    as_json: AsJson = False,
) -> None:
    """Write a topic to Parquet files, each message once; run again, it goes on where it was."""
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
    with spark_session("archive", master, settings) as (spark, bar):
        result = run(spark, options, bar)
    _print(
        result.document(),
        f"{result.messages:,} messages of {result.topic} archived; {result.files:,} files in {result.path}",
        as_json,
    )


@app.command()
def scrub(
    ledgers: Annotated[
        list[int] | None, typer.Option("--ledger", metavar="ID", min=0, help="Only this ledger; may be repeated.")
    ] = None,
    mark: Annotated[
        bool, typer.Option("--mark", help="Mark ledgers with bad replicas for BookKeeper's auto-recovery.")
    ] = False,
    disk: Annotated[
        Path | None,
        typer.Option("--disk", metavar="DIR", help="A bookie's directory here: compare with its disk's speed."),
    ] = None,
    url: Url = DEFAULT_SERVICE_URL,
    admin_url: AdminUrl = None,
    master: Master = DEFAULT_MASTER,
    settings: SparkSettings = None,
    as_json: AsJson = False,
) -> None:
    """Read every replica of every entry from its bookie, and verify it; exits with 1 if any is missing or damaged."""
    require_spark()
    from magnetar.spark.cluster import ClusterOptions
    from magnetar.spark.pipelines.disk_speed import read_speed
    from magnetar.spark.pipelines.scrub import ScrubOptions, run

    options = ScrubOptions(
        cluster=ClusterOptions.of(url, admin_url), ledgers=tuple(dict.fromkeys(ledgers or ())), mark=mark
    )
    speed = read_speed(disk) if disk is not None else None  # Before: files that were just read would come from memory.
    with spark_session("scrub", master, settings) as (spark, bar):
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
    path: Annotated[str, typer.Argument(metavar="PATH", help="Parquet files: an archive, a directory, a glob.")],
    topic: Topic,
    job_id: JobId = "",
    value_column: Annotated[str, typer.Option("--value-column", metavar="NAME", help="Becomes the value.")] = "value",
    key_column: Annotated[str, typer.Option("--key-column", metavar="NAME", help="The key; else `key`.")] = "",
    where: Annotated[str, typer.Option("--where", metavar="SQL", help="Only rows of which this is true.")] = "",
    keep_partitions: Annotated[
        bool, typer.Option("--keep-partitions", help="To the partition it came from, not by its key.")
    ] = False,
    url: Url = DEFAULT_SERVICE_URL,
    admin_url: AdminUrl = None,
    master: Master = DEFAULT_MASTER,
    settings: SparkSettings = None,
    as_json: AsJson = False,
) -> None:
    """Publish the rows of Parquet files to a topic: all or none, and once for each job id."""
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
    with spark_session("replay", master, settings) as (spark, bar):
        result = run(spark, options, bar)
    done = f"{result.messages:,} messages published to {result.topic} by job {result.job_id}"
    again = f"job {result.job_id} was done before, nothing was published; another --job-id publishes it again"
    _print(result.document(), again if result.was_done else done, as_json)


@app.command()
def compact(
    topic: Topic,
    to: Annotated[
        str, typer.Option("--to", metavar="TOPIC|PATH", help="A topic, or a path such as ./snapshot or s3a://….")
    ] = "",
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Have the broker compact the topic itself, and wait; without Spark.")
    ] = False,
    keep_unkeyed: Annotated[bool, typer.Option("--keep-unkeyed", help="Also messages without a key.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is at the path.")] = False,
    job_id: JobId = "",
    url: Url = DEFAULT_SERVICE_URL,
    admin_url: AdminUrl = None,
    master: Master = DEFAULT_MASTER,
    settings: SparkSettings = None,
    as_json: AsJson = False,
) -> None:
    """Write the last message of each key to another topic, or to Parquet files."""
    if in_place == bool(to):
        raise ArgumentError("say --to TOPIC, --to PATH or --in-place")
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
    with spark_session("compact", master, settings) as (spark, bar):
        result = run(spark, options, bar)
    _print(result.document(), f"{result.messages:,} keys of {result.topic} written to {result.to}", as_json)


def _print(document: dict[str, Any], sentence: str, as_json: bool) -> None:
    if as_json:
        print_json(document)
    else:
        print(printable(sentence))
