"""`magnetar pipeline audit`: what was sent and acknowledged, against what is stored and received."""

from __future__ import annotations

import enum
from typing import Annotated, TypeVar

import typer

from magnetar.cli.flags import AsJson
from magnetar.cli.output import print_json
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
from magnetar.errors import ArgumentError

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
    url: Url = DEFAULT_SERVICE_URL,
    admin_url: AdminUrl = None,
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
    from magnetar.spark.pipelines.failures import translated

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
