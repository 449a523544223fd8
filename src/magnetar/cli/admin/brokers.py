"""`magnetar brokers`: the brokers of a cluster, and the bundles of topics that they serve and pass on.

What is listed are the brokers' last reports, which they write every few seconds if their load changes. `drain` asks the
broker itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeAlias

import typer

from magnetar.broker.resources.bundles import NamespaceBundle
from magnetar.cli.admin.client import AdminClient
from magnetar.cli.cluster_options import DEFAULT_ADMIN_URL, AdminUrl
from magnetar.cli.output import AsJson, print_json, print_table
from magnetar.errors import ArgumentError, MagnetarError

Json: TypeAlias = Mapping[str, Any]

_PATH: Final = "magnetar/brokers"
_UNKNOWN: Final = "-"

Bundle: TypeAlias = Annotated[
    str, typer.Argument(metavar="BUNDLE", help="Bundle, as `magnetar brokers bundles` shows it.")
]

app = typer.Typer(no_args_is_help=True, help="List the brokers of a cluster and their bundles, and move bundles.")


@app.command()
def ls(url: AdminUrl = DEFAULT_ADMIN_URL, as_json: AsJson = False) -> None:
    """List the brokers that are alive, with their load. One of them leads: it decides which broker serves a bundle."""
    found = AdminClient(url).get(_PATH)
    if as_json:
        print_json(found)
        return
    columns = ["broker", "leads", "bundles", "topics", "producers", "consumers", "in/s", "out/s", "CPU", "release"]
    print_table(columns, [_broker_row(each) for each in found])


@app.command()
def bundles(
    broker: Annotated[
        str | None,
        typer.Argument(
            metavar="[BROKER]",
            help="Id of a broker, as `magnetar brokers ls` shows it. Default: all brokers.",
        ),
    ] = None,
    url: AdminUrl = DEFAULT_ADMIN_URL,
    as_json: AsJson = False,
) -> None:
    """List the bundles that brokers serve, with their load. A bundle without an owner is not listed."""
    found: list[Json] = AdminClient(url).get(_PATH)
    chosen = [each for each in found if broker in (None, each["brokerId"])]
    if not chosen:
        known = ", ".join(str(each["brokerId"]) for each in found) or "none"
        raise ArgumentError(f"{broker!r} is not a broker of the cluster; it has: {known}")
    rows = [(name, each["brokerId"], stats) for each in chosen for name, stats in _bundles(each).items()]
    rows.sort(key=lambda row: row[0])
    if as_json:
        print_json([{"bundle": name, "brokerId": owner, **stats} for name, owner, stats in rows])
        return
    columns = ["bundle", "broker", "topics", "producers", "consumers", "in/s", "out/s"]
    print_table(columns, [_bundle_row(*row) for row in rows])


@app.command()
def unload(
    bundle: Bundle,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="BROKER",
            help="Id of the broker that serves the bundle next. Default: the broker with the least load.",
        ),
    ] = None,
    url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Close the topics of a bundle, so that another broker can serve it. Clients reconnect by themselves."""
    AdminClient(url).put(f"namespaces/{_checked(bundle)}/unload", destinationBroker=to)


@app.command()
def split(bundle: Bundle, url: AdminUrl = DEFAULT_ADMIN_URL) -> None:
    """Divide a bundle in two, which can then be served by different brokers. Its topics stay open."""
    AdminClient(url).put(f"namespaces/{_checked(bundle)}/split")


@app.command()
def drain(
    broker: Annotated[str, typer.Argument(metavar="BROKER", help="Id of a broker, as `magnetar brokers ls` shows it.")],
    undo: Annotated[bool, typer.Option("--undo", help="Let the broker get bundles again.")] = False,
    url: AdminUrl = DEFAULT_ADMIN_URL,
    as_json: AsJson = False,
) -> None:
    """Move all bundles of a broker to the others, one by one. It gets no more until it is started again."""
    admin = AdminClient(url)
    others = _others(admin.get(_PATH), broker)
    if undo:
        admin.delete(f"{_PATH}/{broker}/draining")
        return
    admin.put(f"{_PATH}/{broker}/draining")
    (cluster,) = admin.get("clusters")[:1]
    moved = []
    for bundle in sorted(admin.get(f"brokers/{cluster}/{broker}/ownedNamespaces")):
        to = min(others, key=lambda each: (others[each], each))
        admin.put(f"namespaces/{bundle}/unload", destinationBroker=to)
        others[to] += 1
        moved.append({"bundle": bundle, "brokerId": to})
    if as_json:
        print_json(moved)
    else:
        print_table(("bundle", "broker"), [(each["bundle"], each["brokerId"]) for each in moved])


def _others(found: list[Json], broker: str) -> dict[str, int]:
    """Returns the other brokers that are not being drained, with the number of bundles that they reported."""
    known = [str(each["brokerId"]) for each in found]
    if broker not in known:
        raise ArgumentError(f"{broker!r} is not a broker of the cluster; it has: {', '.join(known) or 'none'}")
    counts = {
        str(each["brokerId"]): len(_bundles(each))
        for each in found
        if each["brokerId"] != broker and not each["report"].get("isDraining")
    }
    if not counts:
        raise MagnetarError(
            f"{broker} is the only broker of the cluster that is not being drained: start another one first"
        )
    return counts


def _checked(bundle: str) -> str:
    """InvalidNameError unless it is the text of a bundle."""
    return str(NamespaceBundle.parse(bundle))


def _bundles(broker: Json) -> Json:
    return broker["report"].get("lastStats") or {}


def _broker_row(broker: Json) -> list[object]:
    report: Json = broker["report"]
    counts = [report.get(name, _UNKNOWN) for name in ("numBundles", "numTopics", "numProducers", "numConsumers")]
    rates = [_rate(report, "msgRateIn"), _rate(report, "msgRateOut")]
    release = report.get("brokerVersionString") or _UNKNOWN
    return [broker["brokerId"], "yes" if broker["isLeader"] else "", *counts, *rates, _cpu(report), release]


def _bundle_row(name: str, owner: str, stats: Json) -> list[object]:
    counts = [stats.get(field, _UNKNOWN) for field in ("topics", "producerCount", "consumerCount")]
    return [name, owner, *counts, _rate(stats, "msgRateIn"), _rate(stats, "msgRateOut")]


def _rate(found: Json, field: str) -> str:
    return f"{found[field]:.1f}" if field in found else _UNKNOWN


def _cpu(report: Json) -> str:
    cpu: Json = report.get("cpu") or {}
    return f"{100 * cpu['usage'] / cpu['limit']:.0f} %" if cpu.get("limit") else _UNKNOWN
