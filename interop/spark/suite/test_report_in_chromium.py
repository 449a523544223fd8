"""The report as a browser shows it: every plot drawn, nothing in the console, nothing asked of the network."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.spark.suite.chromium import WITHOUT, Chromium, find_chromium
from magnetar.spark.pipelines.audit.page import render
from magnetar.spark.pipelines.audit.values import Findings
from tests.unit.spark.audit.findings import failed_findings, some_findings

PROGRAM = find_chromium()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason=WITHOUT)

PLOTS = [
    "throughput",
    "latency-acknowledged",
    "latency-received",
    "histogram-acknowledged",
    "histogram-received",
    "outages",
]
MEASURE = """JSON.stringify([...document.querySelectorAll('svg[role=img]')].map(plot => ({
    id: plot.id,
    box: plot.getBoundingClientRect().toJSON(),
    drawn: [...plot.querySelectorAll('path, rect')].filter(part => {
        const box = part.getBoundingClientRect(); return box.width * box.height > 1 }).length,
    outside: [...plot.querySelectorAll('text')].filter(part => {
        const box = part.getBoundingClientRect(), all = plot.getBoundingClientRect();
        return box.left < all.left - 1 || box.right > all.right + 1 || box.bottom > all.bottom + 1
    }).map(part => part.textContent)})))"""
OVERLAPS = """JSON.stringify([...document.querySelectorAll('svg[role=img]')].flatMap(plot => {
    const labels = [...plot.querySelectorAll('text.label')].map(part =>
        [part.textContent, part.getBoundingClientRect()]);
    const meet = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
    return labels.flatMap(([one, a], i) => labels.slice(i + 1)
        .filter(([_, b]) => meet(a, b)).map(([other, _]) => [plot.id, one, other]))}))"""
CONTRAST = """(() => {
    const shade = colour => { const [r, g, b] = colour.match(/[\\d.]+/g).map(Number).map(part => {
        const unit = part / 255; return unit <= .04045 ? unit / 12.92 : ((unit + .055) / 1.055) ** 2.4 });
        return .2126 * r + .7152 * g + .0722 * b };
    const behind = part => { for (; part; part = part.parentElement) {
        const colour = getComputedStyle(part).backgroundColor;
        if (!colour.endsWith(', 0)') && colour !== 'transparent') return colour } return 'rgb(255, 255, 255)' };
    return JSON.stringify([...document.querySelectorAll('h1, p, span, td, th, dt, dd, caption, summary')]
        .filter(part => part.childElementCount === 0 && part.textContent.trim() && part.getBoundingClientRect().width)
        .map(part => { const a = shade(getComputedStyle(part).color), b = shade(behind(part));
            return [part.textContent, (Math.max(a, b) + .05) / (Math.min(a, b) + .05)] })
        .filter(([_, ratio]) => ratio < 4.5)) })()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    assert PROGRAM is not None
    with Chromium(PROGRAM, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def opened(browser: Chromium, findings: Findings, directory: Path, scheme: str, width: int = 1200) -> Path:
    page = directory / "report.html"
    page.write_text(render(findings), encoding="utf-8")
    browser.noted.console.clear()
    browser.noted.requests.clear()
    browser.open(page, width=width, height=900, scheme=scheme)
    return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("findings", [some_findings(), failed_findings()], ids=["passed", "failed"])
def test_every_plot_is_drawn_and_the_console_stays_silent(
    browser: Chromium, findings: Findings, tmp_path: Path, scheme: str
) -> None:
    page = opened(browser, findings, tmp_path, scheme)
    measured = json.loads(browser.evaluate(MEASURE))
    assert [plot["id"] for plot in measured] == PLOTS
    for plot in measured:
        assert plot["box"]["width"] > 600
        assert plot["box"]["height"] > 60
        assert plot["drawn"] > 0, plot
        assert plot["outside"] == [], plot
    assert json.loads(browser.evaluate(OVERLAPS)) == []
    assert browser.noted.console == []
    asked = [url for url in browser.noted.requests if not url.startswith("data:")]
    assert asked == [page.as_uri()]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_on_what_is_behind_it(browser: Chromium, tmp_path: Path, scheme: str) -> None:
    opened(browser, failed_findings(), tmp_path, scheme)
    assert json.loads(browser.evaluate(CONTRAST)) == []


def test_dark_is_dark_and_light_is_light(browser: Chromium, tmp_path: Path) -> None:
    shades = {}
    for scheme in ("light", "dark"):
        opened(browser, some_findings(), tmp_path, scheme)
        colour = browser.evaluate("getComputedStyle(document.body).backgroundColor")
        shades[scheme] = sum(map(int, colour.removeprefix("rgb(").removesuffix(")").split(",")))
    assert shades["dark"] < 150 < 600 < shades["light"]


def test_a_narrow_screen_does_not_scroll_sideways(browser: Chromium, tmp_path: Path) -> None:
    opened(browser, failed_findings(), tmp_path, "light", width=400)
    assert browser.evaluate("document.documentElement.scrollWidth") <= 400


def test_a_picture_of_the_page_can_be_taken(browser: Chromium, tmp_path: Path) -> None:
    opened(browser, some_findings(), tmp_path, "light")
    picture = tmp_path / "report.png"
    browser.screenshot(picture, whole_page=True)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 50_000
