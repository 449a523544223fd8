"""The table of routes: what the server, OpenAPI and the docs are made from."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from magnetar.admin.http.app import _precedence
from magnetar.admin.routes import all_routes, describe, page
from magnetar.names import Domain

ROUTES = all_routes()
DOCS = Path(__file__).resolve().parents[3] / "docs" / "admin-rest.md"


def test_every_route_has_a_summary_of_its_own_words() -> None:
    assert [route.path for route in ROUTES if len(route.summary) < 10 or route.summary.endswith(".")] == []


def test_no_route_is_declared_twice() -> None:
    counts = Counter((route.method, route.path) for route in ROUTES)
    assert [route for route, count in counts.items() if count > 1] == []


def test_every_route_is_in_openapi_with_its_parts_and_queries() -> None:
    paths = describe(ROUTES)["paths"]
    for route in ROUTES:
        operation = paths[route.path][route.method.lower()]
        names = [parameter["name"] for parameter in operation.get("parameters", [])]
        assert operation["summary"] == route.summary
        assert names == [*route.parts, *(query.name for query in route.query)]
        assert ("requestBody" in operation) == bool(route.body)


def test_every_route_is_on_the_page_for_people() -> None:
    text = page(ROUTES)
    assert [route.path for route in ROUTES if route.path not in text] == []


def test_every_family_is_in_the_docs() -> None:
    text = DOCS.read_text()
    families = {"/".join(route.path.split("/")[:4]) for route in ROUTES}
    assert [family for family in sorted(families) if family not in text] == []


def test_a_route_of_a_domain_says_so() -> None:
    for route in ROUTES:
        is_fleeting = route.path.startswith("/admin/v2/non-persistent/")
        assert route.domain is (Domain.NON_PERSISTENT if is_fleeting else Domain.PERSISTENT)


def test_what_is_written_out_counts_before_what_may_be_anything() -> None:
    paths = ["/a/{x}", "/a/b", "/a/{x}/c", "/a/b/{y}"]
    assert sorted(paths, key=_precedence)[0] == "/a/b"
    assert sorted(paths, key=_precedence).index("/a/b/{y}") < sorted(paths, key=_precedence).index("/a/{x}")


def test_parts_are_plain_names() -> None:
    assert [route.path for route in ROUTES if not all(re.fullmatch(r"[a-z]+", part) for part in route.parts)] == []
