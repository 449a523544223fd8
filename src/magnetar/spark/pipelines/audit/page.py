"""The audit as one HTML file: the verdict first, then the amounts, the times and the messages; figures in, text out.

Invariant: it is one file: style.css is put into it, there is no script, and a content security policy forbids the page
           to load anything. Every plot has a title, a description and its figures as a table, for readers who cannot
           see it or want the numbers.
Read next: charts.py (the plots)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from importlib.resources import files
from typing import Final

from magnetar.spark.pipelines.audit import charts
from magnetar.spark.pipelines.audit.markup import (
    NOTHING,
    Markup,
    clock,
    count,
    date_and_clock,
    duration,
    element,
    joined,
    text,
)
from magnetar.spark.pipelines.audit.values import EXPIRED, FAULTS, IN_DOUBT, Findings, MessageRow

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_CHECK: Final = "M5 13l4 4L19 7"
_NUMBER: Final = "number"
_CODE: Final = "code"
_CROSS: Final = "M6 6l12 12M18 6L6 18"


def render(findings: Findings) -> str:
    head = element(
        "head",
        None,
        Markup('<meta charset="utf-8"/>'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1"/>'),
        element("meta", {"http-equiv": "Content-Security-Policy", "content": _POLICY}),
        Markup('<meta name="color-scheme" content="light dark"/>'),
        Markup(f'<link rel="icon" href="{_icon(findings)}"/>'),
        element("title", None, text(f"{_word(findings)}: {findings.title}")),
        element("style", None, Markup(files(__package__).joinpath("style.css").read_text(encoding="utf-8"))),
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
        parts.append(_section("streams", "Topics and producers", _stream_table(findings)))
    return parts


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
    answers = f"{count(counts.failed)} refused, {count(counts.unanswered)} without an answer"
    stations = [
        ("sent", counts.sent, "by producers, as their logs say", True),
        ("acknowledged", counts.acknowledged, answers, True),
        ("stored", counts.stored, "in the topic", findings.compares_stored),
        ("received", counts.received, f"{count(counts.redelivered)} came again", findings.compares_received),
    ]
    items = (
        _figured(f"station {name}", count(number), name, about)
        if is_compared
        else _figured(f"station {name}", NOTHING, name, "not compared")
        for name, number, about, is_compared in stations
    )
    return element("ol", {"class": "flow", "aria-label": "Messages from producers to consumers"}, *items)


def _faults(findings: Findings) -> Markup:
    counts = asdict(findings.counts)
    harmless = (*findings.allowed, IN_DOUBT.name, EXPIRED.name)
    tiles = []
    for kind in (*FAULTS, IN_DOUBT, EXPIRED):
        sort = "none" if not counts[kind.name] else "doubt" if kind.name in harmless else "bad"
        tiles.append(_figured(f"tile {sort}", count(counts[kind.name]), kind.title, kind.meaning))
    return _section("faults", "What could be wrong", element("ul", {"class": "tiles"}, *tiles))


def _figured(kind: str, figure: str, name: str, about: str) -> Markup:
    """Makes a large figure with its name and an explanation."""
    parts = {"figure": figure, "name": name, "about": about}
    spans = (element("span", {"class": part}, text(words)) for part, words in parts.items())
    return element("li", {"class": kind}, *spans)


# --- the plots --------------------------------------------------------------------------------------------------------


def _over_time(findings: Findings) -> Markup:
    series = [name for name in charts.SERIES if any(step.series == name for step in findings.steps)]
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
        element("details", None, element("summary", None, text("The figures of these plots")), _step_table(findings)),
    )


def _latency(findings: Findings) -> Markup:
    names = {"acknowledged": "ack", "received": "delivery"}
    plots = (
        _figure(words[0].upper() + words[1:], Markup(""), charts.histogram(findings, series, names[series], words))
        for series, words in _latency_series(findings)
    )
    return _section("latency", "Latency", _latency_table(findings), *plots)


def _latency_series(findings: Findings) -> list[tuple[str, str]]:
    words = {"acknowledged": LATENCIES["ack"], "received": LATENCIES["delivery"]}
    return [(series, words[series]) for series in words if any(each.series == series for each in findings.bins)]


def _outages(findings: Findings) -> Markup:
    if not findings.outages:
        words = "No producer had to wait long for an acknowledgement."
        return _section("interruptions", "Outages", element("p", {"class": "quiet"}, text(words)))
    longest = max(outage.duration_ms for outage in findings.outages)
    times = "Once" if len(findings.outages) == 1 else f"{count(len(findings.outages))} times"
    words = f"{times} messages were in flight and none was acknowledged, for {duration(longest)} at most."
    timeline = _figure("Without an acknowledgement", _legend(["outage"]), charts.outage_timeline(findings))
    return _section("interruptions", "Outages", element("p", None, text(words)), timeline, _outage_table(findings))


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
        parts.append(_message_table("Messages with faults or in doubt, the worst first", findings.faulty))
    else:
        parts.append(element("p", {"class": "quiet"}, text("No message has a fault, and none is in doubt.")))
    if findings.slowest:
        parts.append(_message_table("The slowest acknowledgements", findings.slowest))
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


def _icon(findings: Findings) -> str:
    colour = "%23158a4f" if findings.passed else "%23c8321f"
    circle = f"%3Ccircle cx='4' cy='4' r='4' fill='{colour}'/%3E"
    return f"data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 8 8'%3E{circle}%3C/svg%3E"


TITLES = {kind.name: kind.title for kind in (*FAULTS, EXPIRED, IN_DOUBT)}
LATENCIES = {
    "ack": "sent → acknowledged",
    "delivery": "published → received",
    "end_to_end": "sent → received",
}


def _table(caption: str, columns: Mapping[str, str | None], rows: Iterable[Sequence[Markup]]) -> Markup:
    """Puts the table in a box that scrolls by itself, so that a long key does not widen the page. `columns`: titles
    and CSS classes."""
    heads = (element("th", {"scope": "col", "class": kind}, text(title)) for title, kind in columns.items())
    lines = []
    for row in rows:
        cells = zip(columns.values(), row, strict=True)
        lines.append(element("tr", None, *(element("td", {"class": kind}, cell) for kind, cell in cells)))
    whole = element(
        "table",
        None,
        element("caption", None, text(caption)),
        element("thead", None, element("tr", None, *heads)),
        element("tbody", None, *lines),
    )
    return element("div", {"class": "table", "tabindex": 0, "role": "region", "aria-label": caption}, whole)


def _latency_table(findings: Findings) -> Markup:
    columns = {"way": None} | dict.fromkeys(("messages", "mean", "p50", "p90", "p99", "p99.9", "longest"), _NUMBER)
    rows = []
    for name, words in LATENCIES.items():
        if (found := findings.latency.get(name)) is None:
            continue
        figures = (found.mean, found.p50, found.p90, found.p99, found.p999, found.longest)
        rows.append([text(words), text(count(found.count)), *(text(duration(figure)) for figure in figures)])
    return _table("Latency in figures", columns, rows)


def _message_table(caption: str, rows: Sequence[MessageRow]) -> Markup:
    columns = {
        "verdict": None,
        "producer": _CODE,
        "sequence": _NUMBER,
        **dict.fromkeys(("key", "message id"), _CODE),
        **dict.fromkeys(("sent (UTC)", "acknowledged after", "received after"), _NUMBER),
        "what is wrong": None,
    }
    lines = []
    for row in rows:
        names = row.producer or NOTHING, NOTHING if row.sequence is None else row.sequence
        places = row.key if row.key is not None else NOTHING, row.message_id or NOTHING
        times = clock(row.sent_us), duration(row.ack_ms), duration(row.delivery_ms)
        lines.append([_badge(row.verdict), *map(text, (*names, *places, *times, row.note or NOTHING))])
    return _table(caption, columns, lines)


def _badge(verdict: str) -> Markup:
    kind = "bad" if verdict in {fault.name for fault in FAULTS} else "doubt" if verdict in TITLES else "good"
    return element("span", {"class": f"badge {kind}"}, text(TITLES.get(verdict, verdict)))


def _outage_table(findings: Findings) -> Markup:
    times = ("begin (UTC)", "end (UTC)", "without acknowledgement")
    columns = dict.fromkeys(times, _NUMBER) | dict.fromkeys(("producer", "topic"), _CODE)
    rows = []
    for outage in findings.outages:
        end = "still open" if outage.end_us is None else clock(outage.end_us)
        cells = clock(outage.begin_us), end, duration(outage.duration_ms), outage.producer, outage.topic
        rows.append([*map(text, cells)])
    return _table("Outages", columns, rows)


def _stream_table(findings: Findings) -> Markup:
    names = ("sent", "acknowledged", "stored", "received", "faults")
    columns = dict.fromkeys(("topic", "producer"), _CODE) | dict.fromkeys((*names, "p99 of acknowledgement"), _NUMBER)
    rows = []
    for stream in findings.streams:
        counts = (count(getattr(stream, name)) for name in names)
        cells = stream.topic, stream.producer or NOTHING, *counts, duration(stream.ack_p99_ms)
        rows.append([*map(text, cells)])
    return _table("By topic and producer", columns, rows)


def _step_table(findings: Findings) -> Markup:
    columns = {"series": None} | dict.fromkeys(("from (UTC)", "messages", "p50", "p99", "longest"), _NUMBER)
    rows = []
    for step in findings.steps:
        latencies = map(duration, (step.p50_ms, step.p99_ms, step.longest_ms))
        rows.append([*map(text, (step.series, clock(step.begin_us), count(step.count), *latencies))])
    return _table(f"In steps of {duration(findings.step_us / 1000)}", columns, rows)
