"""`magnetar pipeline audit`: what was sent and acknowledged, against what is stored and received."""

from __future__ import annotations

import enum
from typing import Annotated, TypeVar

import typer

from magnetar.cli.flags import AsJson
from magnetar.cli.output import print_json
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
from magnetar.errors import ArgumentError

Kind = TypeVar("Kind", bound=enum.Enum)


def audit(
    logs: Annotated[list[str], typer.Argument(metavar="LOG...", help="JSON lines of producers and consumers.")],
    topics: Annotated[
        list[str] | None, typer.Option("--topic", metavar="TOPIC", help="Read as what is stored; may be repeated.")
    ] = None,
    archive: Annotated[str, typer.Option("--archive", metavar="PATH", help="Parquet instead of topics.")] = "",
    report: Annotated[str, typer.Option("--report", metavar="FILE", help="An HTML report with plots.")] = "",
    output: Annotated[str, typer.Option("--output", metavar="DIR", help="A verdict per message, as Parquet.")] = "",
    identity: Annotated[
        str, typer.Option("--identity", help="What tells messages apart: sequence, or header.")
    ] = "sequence",
    order: Annotated[str, typer.Option("--order", help="Of what is stored: producer, key or none.")] = "producer",
    received_order: Annotated[
        str, typer.Option("--received-order", help="Of what a consumer received: producer, key or none.")
    ] = "producer",
    allow_missed: Annotated[
        bool, typer.Option("--allow-missed", help="Pass though a subscription did not receive everything.")
    ] = False,
    allow_unexpected: Annotated[
        bool, typer.Option("--allow-unexpected", help="Pass though there are messages that no log knows.")
    ] = False,
    outage_ms: Annotated[
        int, typer.Option("--outage-ms", min=1, help="So long without an acknowledgement is an outage.")
    ] = 500,
    title: Annotated[str, typer.Option("--title", help="Of the report.")] = "Delivery audit",
    url: Url = DEFAULT_SERVICE_URL,
    admin_url: AdminUrl = None,
    master: Master = DEFAULT_MASTER,
    settings: SparkSettings = None,
    as_json: AsJson = False,
) -> None:
    """Compare what was sent and acknowledged with what is stored and received; exits with 1 if anything is wrong."""
    require_spark()
    from magnetar.spark.cluster import ClusterOptions
    from magnetar.spark.pipelines.audit import AuditOptions, Identity, Order, run
    from magnetar.spark.pipelines.audit_table import print_result
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
    with spark_session("audit", master, settings) as (spark, bar), translated("the audit failed"):
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
