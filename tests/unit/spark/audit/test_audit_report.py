"""The HTML report, from findings to text: well-formed, complete, self-contained, and safe from what is in it."""

from __future__ import annotations

import io
import re
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from magnetar.spark.pipelines.audit import charts as scales
from magnetar.spark.pipelines.audit import markup
from magnetar.spark.pipelines.audit.markup import element, text
from magnetar.spark.pipelines.audit.page import render
from magnetar.spark.pipelines.audit.table import print_result
from magnetar.spark.pipelines.audit.values import AuditResult, Counts, Findings
from tests.unit.spark.audit.findings import BEGIN_US, failed_findings, row, some_findings

SVG = "svg"


def tree_of(page: str) -> ET.Element:
    """The page is XML, too: a tag that is not closed is an error."""
    return ET.fromstring(page.removeprefix("<!DOCTYPE html>\n"))


def words_of(part: ET.Element) -> str:
    return " ".join("".join(part.itertext()).split())


def by_id(page: ET.Element, name: str) -> ET.Element:
    found = page.find(f".//*[@id='{name}']")
    assert found is not None, name
    return found


@pytest.fixture(scope="module")
def passed() -> ET.Element:
    return tree_of(render(some_findings()))


def test_the_verdict_comes_first(passed: ET.Element) -> None:
    main = passed.find("body/main")
    assert main is not None
    assert main[0].get("id") == "verdict"
    assert [words_of(part) for part in main[0].iter() if part.tag in {"h1", "p"}][1:3] == [
        "Passed",
        "Everything that was acknowledged is stored, once and in order.",
    ]


def test_a_failed_audit_says_so_in_title_and_heading_and_shows_the_messages() -> None:
    page = tree_of(render(failed_findings()))
    assert page.findtext("head/title") == "Failed: Orders"
    assert page.findtext(".//h1") == "Failed"
    assert "acknowledged as 3:4:-1:0, but not stored" in words_of(by_id(page, "messages"))
    assert [tile.findtext("span[@class='figure']") for tile in page.findall(".//li[@class='tile bad']")] == [
        "2",
        "1",
        "9",
    ]


def test_all_plots_are_there_and_each_has_a_title_and_a_description(passed: ET.Element) -> None:
    plots = [part for part in passed.iter(SVG) if part.get("role") == "img"]
    assert [plot.get("id") for plot in plots] == [
        "throughput",
        "latency-acknowledged",
        "latency-received",
        "histogram-acknowledged",
        "histogram-received",
        "outages",
    ]
    for plot in plots:
        for name in (plot.get("aria-labelledby") or "").split():
            assert words_of(by_id(passed, name))


def test_curves_have_a_gap_where_nothing_was_answered(passed: ET.Element) -> None:
    plot = by_id(passed, "latency-acknowledged")
    (curve,) = [path for path in plot.iter("path") if path.get("class") == "curve p50"]
    assert (curve.get("d") or "").count("M") == 2


def test_outages_are_bands_behind_the_plots_over_time(passed: ET.Element) -> None:
    for name in ("throughput", "latency-acknowledged"):
        (band,) = [part for part in by_id(passed, name).iter("rect") if part.get("class") == "band"]
        assert float(band.get("width") or 0) > 100, "two seconds of ten"


def test_nothing_that_is_drawn_is_outside_of_its_plot(passed: ET.Element) -> None:
    for plot in (part for part in passed.iter(SVG) if part.get("role") == "img"):
        _, _, width, height = map(float, (plot.get("viewBox") or "").split())
        for path in plot.iter("path"):
            for x, y in re.findall(r"[ML]([-\d.]+) ([-\d.]+)", path.get("d") or ""):
                assert 0 <= float(x) <= width
                assert 0 <= float(y) <= height
        for rect in plot.iter("rect"):
            assert float(rect.get("x") or 0) + float(rect.get("width") or 0) <= width


def test_the_page_loads_nothing_and_runs_nothing() -> None:
    page = render(failed_findings())
    assert "<script" not in page
    assert "default-src &#x27;none&#x27;" in page
    assert re.findall(r'(?:src|href)="(?!#|data:)', page) == []
    assert re.findall(r"url\(|@import|https?://(?!www\.w3\.org)", page) == []


def test_both_schemes_have_the_same_colours() -> None:
    page = render(some_findings())
    light, dark = page.split("@media (prefers-color-scheme: dark)")[:2]
    names = set(re.findall(r"(--[\w-]+):", light))
    assert names <= set(re.findall(r"(--[\w-]+):", dark))


def test_text_from_outside_cannot_become_markup() -> None:
    evil = "<script>alert(1)</script>\x1b[31m"
    page = render(some_findings(title=evil, faulty=(row("lost", note=evil),), inputs={"logs": evil}))
    assert "<script" not in page
    assert "\x1b" not in page
    tree_of(page)
    assert element("p", {"title": '"><b>'}, text("&")) == '<p title="&quot;&gt;&lt;b&gt;">&amp;</p>'


@pytest.mark.parametrize(
    "findings",
    [
        some_findings(counts=Counts(), steps=(), bins=(), latency={}, outages=(), slowest=(), streams=(), last_us=0),
        some_findings(last_us=BEGIN_US, steps=some_findings().steps[:1], outages=()),
        some_findings(compares_received=False, compares_stored=False),
    ],
    ids=["nothing at all", "a single moment", "one side"],
)
def test_there_is_a_page_for_little_and_for_nothing(findings: Findings) -> None:
    tree_of(render(findings))


def test_numbers_are_written_as_people_read_them() -> None:
    assert [markup.duration(value) for value in (None, 0.1234, 12.34, 999.7, 1_500, 61_000, 7_260_000)] == [
        "–",
        "0.123 ms",
        "12.3 ms",
        "1 s",
        "1.5 s",
        "1 min 1 s",
        "2 h 1 min",
    ]
    assert [markup.short_count(value) for value in (0, 950, 1_500, 2_000_000)] == ["0", "950", "1.5 k", "2 M"]
    assert markup.clock(BEGIN_US + 123_456) == "22:13:20.123"
    assert markup.date_and_clock(BEGIN_US) == "2023-11-14 22:13:20 UTC"


def test_ticks_are_round_and_inside_of_their_axis() -> None:
    assert scales.Linear(0, 3_000, 0, 1).ticks(4) == [0, 1_000, 2_000, 3_000]
    assert scales.Logarithmic(0.1, 100, 0, 1).ticks() == pytest.approx([0.1, 1, 10, 100])
    assert scales.Logarithmic(1, 10, 0, 1).ticks() == pytest.approx([1, 2, 5, 10])
    assert scales.time_ticks(18) == [0, 5, 10, 15]
    assert scales.time_ticks(0.4)[-1] <= 0.4
    assert scales.decades(0.3, 10) == pytest.approx((0.1, 100.0))
    assert scales.nice_top(0) == 1.0
    assert scales.nice_top(3_100) == 4_000


def test_the_terminal_shows_the_same_verdict() -> None:
    console = Console(file=io.StringIO(), width=140)
    print_result(AuditResult(failed_findings(), None, report_path="/tmp/report.html"), console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    for words in (
        "FAILED: 2 lost, 1 duplicated, 9 missed.",
        "sent → acknowledged",
        "report: /tmp/report.html",
        "in doubt",
    ):
        assert words in shown
