"""The page: the verdict first, then the amounts, the times and the messages.

Invariant: it is one file: style.css is put into it, there is no script, and a content security policy forbids the page
           to load anything.
"""

from __future__ import annotations

from dataclasses import asdict
from importlib.metadata import version
from importlib.resources import files
from typing import Final

from magnetar.spark.pipelines.audit.options import EXPIRED, FAULTS, IN_DOUBT
from magnetar.spark.pipelines.audit.result import Findings
from magnetar.spark.pipelines.report import charts, tables
from magnetar.spark.pipelines.report.markup import (
    NOTHING,
    Markup,
    count,
    date_and_clock,
    duration,
    element,
    joined,
    text,
)

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_CHECK: Final = "M5 13l4 4L19 7"
_CROSS: Final = "M6 6l12 12M18 6L6 18"


def render(findings: Findings) -> str:
    """Returns the whole file."""
    head = element(
        "head",
        None,
        Markup('<meta charset="utf-8"/>'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1"/>'),
        element("meta", {"http-equiv": "Content-Security-Policy", "content": _POLICY}),
        Markup('<meta name="color-scheme" content="light dark"/>'),
        Markup(f'<link rel="icon" href="{_icon(findings)}"/>'),
        element("title", None, text(f"{_word(findings)}: {findings.title}")),
        element("style", None, Markup(_style())),
    )
    body = element(
        "body",
        None,
        element("a", {"class": "skip", "href": "#messages"}, text("Skip to the messages")),
        element("main", None, *_sections(findings)),
        _footer(findings),
    )
    return f"<!DOCTYPE html>\n{element('html', {'lang': 'en'}, head, body)}\n"


def _sections(findings: Findings) -> list[Markup]:
    parts = [_verdict(findings), _flow(findings), _faults(findings)]
    if findings.steps:
        parts.append(_over_time(findings))
    if findings.latency:
        parts.append(_latency(findings))
    parts += [_outages(findings), _messages(findings)]
    if findings.streams:
        parts.append(_section("streams", "Topics and producers", tables.streams(findings)))
    return parts


# --- the verdict and the counts ---------------------------------------------------------------------------------------


def _verdict(findings: Findings) -> Markup:
    sign = element(
        "svg",
        {"viewBox": "0 0 24 24", "class": "sign", "aria-hidden": "true"},
        element("path", {"d": _CHECK if findings.passed else _CROSS}),
    )
    spans = f"{date_and_clock(findings.first_us)}, {duration((findings.last_us - findings.first_us) / 1000)} long"
    words = element(
        "div",
        None,
        element("p", {"class": "eyebrow"}, text(findings.title)),
        element("h1", None, text(_word(findings))),
        element("p", {"class": "sentence"}, text(findings.sentence)),
        element("p", {"class": "when"}, text(spans if findings.last_us else "No message was found.")),
    )
    kind = "passed" if findings.passed else "failed"
    return element("header", {"class": f"verdict {kind}", "id": "verdict"}, sign, words)


def _word(findings: Findings) -> str:
    return "Passed" if findings.passed else "Failed"


def _flow(findings: Findings) -> Markup:
    """Shows the messages that went in and came out, from left to right."""
    counts = findings.counts
    stations = [
        ("sent", count(counts.sent), "by producers, as their logs say"),
        ("acknowledged", count(counts.acknowledged), _answered(findings)),
        (
            "stored",
            count(counts.stored) if findings.compares_stored else NOTHING,
            _side(findings.compares_stored, "in the topic"),
        ),
        (
            "received",
            count(counts.received) if findings.compares_received else NOTHING,
            _side(findings.compares_received, f"{count(counts.redelivered)} came again"),
        ),
    ]
    items = (
        element(
            "li",
            {"class": f"station {name}"},
            element("span", {"class": "figure"}, text(figure)),
            element("span", {"class": "name"}, text(name)),
            element("span", {"class": "about"}, text(about)),
        )
        for name, figure, about in stations
    )
    return element("ol", {"class": "flow", "aria-label": "Messages from producers to consumers"}, *items)


def _answered(findings: Findings) -> str:
    counts = findings.counts
    return f"{count(counts.failed)} refused, {count(counts.unanswered)} without an answer"


def _side(is_compared: bool, words: str) -> str:
    return words if is_compared else "not compared"


def _faults(findings: Findings) -> Markup:
    counts = asdict(findings.counts)
    tiles = [_tile(kind.title, counts[kind.name], kind.meaning, _tile_kind(findings, kind.name)) for kind in FAULTS]
    tiles += [
        _tile(kind.title, counts[kind.name], kind.meaning, "doubt" if counts[kind.name] else "none")
        for kind in (IN_DOUBT, EXPIRED)
    ]
    return _section("faults", "What could be wrong", element("ul", {"class": "tiles"}, *tiles))


def _tile_kind(findings: Findings, name: str) -> str:
    if not asdict(findings.counts)[name]:
        return "none"
    return "doubt" if name in findings.allowed else "bad"


def _tile(title: str, figure: int, about: str, kind: str) -> Markup:
    return element(
        "li",
        {"class": f"tile {kind}"},
        element("span", {"class": "figure"}, text(count(figure))),
        element("span", {"class": "name"}, text(title)),
        element("span", {"class": "about"}, text(about)),
    )


# --- the plots --------------------------------------------------------------------------------------------------------


def _over_time(findings: Findings) -> Markup:
    series = [name for name in charts.SERIES if charts.has_series(findings, name)]
    return _section(
        "time",
        "Over time",
        _figure("Messages a second", _legend([*series, *_band(findings)]), charts.throughput(findings)),
        *(
            _figure(
                f"Latency, {words}",
                _legend(["p50", "p99", "longest", *_band(findings)]),
                charts.latency_over_time(findings, name, words),
            )
            for name, words in _latency_series(findings)
        ),
        element("details", None, element("summary", None, text("The figures of these plots")), tables.steps(findings)),
    )


def _latency(findings: Findings) -> Markup:
    names = {"acknowledged": "ack", "received": "delivery"}
    plots = (
        _figure(words[0].upper() + words[1:], Markup(""), charts.histogram(findings, series, names[series], words))
        for series, words in _latency_series(findings)
    )
    return _section("latency", "Latency", tables.latencies(findings), *plots)


def _latency_series(findings: Findings) -> list[tuple[str, str]]:
    words = {"acknowledged": tables.LATENCIES["ack"], "received": tables.LATENCIES["delivery"]}
    return [(series, words[series]) for series in words if charts.has_latency(findings, series)]


def _outages(findings: Findings) -> Markup:
    if not findings.outages:
        words = "No producer had to wait long for an acknowledgement."
        return _section("interruptions", "Outages", element("p", {"class": "quiet"}, text(words)))
    longest = max(outage.duration_ms for outage in findings.outages)
    times = "Once" if len(findings.outages) == 1 else f"{count(len(findings.outages))} times"
    words = f"{times} messages were in flight and none was acknowledged, for {duration(longest)} at most."
    timeline = _figure("Without an acknowledgement", _legend(["outage"]), charts.outage_timeline(findings))
    return _section("interruptions", "Outages", element("p", None, text(words)), timeline, tables.outages(findings))


def _band(findings: Findings) -> list[str]:
    return ["outage"] if findings.outages else []


def _legend(names: list[str]) -> Markup:
    items = (element("li", None, element("span", {"class": f"swatch {name}"}), text(name)) for name in names)
    return element("ul", {"class": "legend", "aria-hidden": "true"}, *items)


def _figure(caption: str, legend: Markup, plot: Markup) -> Markup:
    head = element("figcaption", None, element("span", None, text(caption)), legend)
    return element("figure", None, head, element("div", {"class": "scroll"}, plot))


# --- the messages, and the rest ---------------------------------------------------------------------------------------


def _messages(findings: Findings) -> Markup:
    parts = []
    if findings.faulty:
        parts.append(tables.messages("Messages with faults or in doubt, the worst first", findings.faulty))
    else:
        parts.append(element("p", {"class": "quiet"}, text("No message has a fault, and none is in doubt.")))
    if findings.slowest:
        parts.append(tables.messages("The slowest acknowledgements", findings.slowest))
    return _section("messages", "The worst messages", *parts)


def _section(name: str, title: str, *children: Markup) -> Markup:
    heading = element("h2", {"id": f"{name}-heading"}, text(title))
    return element("section", {"id": name, "aria-labelledby": f"{name}-heading"}, heading, *children)


def _footer(findings: Findings) -> Markup:
    inputs = joined(
        joined([element("dt", None, text(name)), element("dd", None, text(value))])
        for name, value in findings.inputs.items()
    )
    notes = joined(element("p", {"class": "note"}, text(note)) for note in findings.notes)
    made = (
        f"Made by magnetar {version('magnetar')} on {date_and_clock(findings.made_us)}; every client has its own clock."
    )
    return element("footer", None, notes, element("dl", None, inputs), element("p", None, text(made)))


def _style() -> str:
    return files(__package__).joinpath("style.css").read_text(encoding="utf-8")


def _icon(findings: Findings) -> str:
    colour = "%23158a4f" if findings.passed else "%23c8321f"
    circle = f"%3Ccircle cx='4' cy='4' r='4' fill='{colour}'/%3E"
    return f"data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 8 8'%3E{circle}%3C/svg%3E"
