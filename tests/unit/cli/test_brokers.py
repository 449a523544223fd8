from __future__ import annotations

import json
from typing import Any

import pytest

from magnetar.broker.cluster.load_report import Amount, BrokerReport, BundleStats, Usage
from magnetar.broker.ownership import BrokerAddress
from magnetar.cli.admin import brokers
from magnetar.errors import ArgumentError, InvalidNameError, MagnetarError

BUSY = BundleStats(10.0, 1.0, 20.5, 1.0, consumers=2, producers=1, topics=3)
REPORT = BrokerReport(
    address=BrokerAddress("b:8080", "http://b:8080", {"pulsar": "pulsar://b:6650"}),
    usage=Usage(cpu=Amount(37.4, 100.0)),
    bundles={"public/default/0x40000000_0x80000000": BUSY, "public/default/0x00000000_0x40000000": BundleStats()},
)
FOUND: list[dict[str, Any]] = [
    {"brokerId": "a:8080", "isLeader": True, "report": {"numTopics": 4}},
    {"brokerId": "b:8080", "isLeader": False, "report": REPORT.to_json()},
]


ANSWERS = {
    "magnetar/brokers": FOUND,
    "clusters": ["east", "west"],
    "brokers/east/b:8080/ownedNamespaces": {bundle: {} for bundle in REPORT.bundles},
}
Done = list[tuple[str, str | None]]


@pytest.fixture(autouse=True)
def done(monkeypatch: pytest.MonkeyPatch) -> Done:
    """The paths that were put, with the destination."""
    put: Done = []

    class Client:
        def __init__(self, url: str) -> None:
            assert url == "http://b:8080"

        def get(self, path: str) -> Any:
            return ANSWERS[path]

        def put(self, path: str, **query: str | None) -> None:
            put.append((path, query.get("destinationBroker")))

        def delete(self, path: str) -> None:
            put.append((f"not {path}", None))

    monkeypatch.setattr(brokers, "AdminClient", Client)
    return put


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_brokers_are_listed_with_their_load_and_the_leader(capsys: pytest.CaptureFixture[str]) -> None:
    brokers.ls("http://b:8080")
    assert lines(capsys)[1:] == ["a:8080 yes - 4 - - - - - -", "b:8080 2 3 1 2 10.0 20.5 37 % 4.2.4"]


def test_bundles_are_listed_with_their_broker_and_load(capsys: pytest.CaptureFixture[str]) -> None:
    brokers.bundles(None, "http://b:8080")
    assert lines(capsys)[1:] == [
        "public/default/0x00000000_0x40000000 b:8080 0 0 0 0.0 0.0",
        "public/default/0x40000000_0x80000000 b:8080 3 1 2 10.0 20.5",
    ]
    brokers.bundles("a:8080", "http://b:8080")
    assert len(lines(capsys)) == 1


def test_a_broker_that_is_not_in_the_cluster_is_refused_with_those_that_are() -> None:
    with pytest.raises(ArgumentError, match="'x' is not a broker of the cluster; it has: a:8080, b:8080"):
        brokers.bundles("x", "http://b:8080")


def test_programs_get_the_whole_reports(capsys: pytest.CaptureFixture[str]) -> None:
    brokers.ls("http://b:8080", as_json=True)
    assert json.loads(capsys.readouterr().out) == FOUND
    brokers.bundles("b:8080", "http://b:8080", as_json=True)
    (_, second) = json.loads(capsys.readouterr().out)
    assert second["bundle"] == "public/default/0x40000000_0x80000000"
    assert (second["brokerId"], second["msgRateOut"]) == ("b:8080", 20.5)


def test_a_bundle_is_unloaded_to_the_broker_that_is_named_and_split(done: Done) -> None:
    brokers.unload("public/default/0x00000000_0x40000000", "a:8080", "http://b:8080")
    brokers.split("public/default/0x00000000_0x40000000", "http://b:8080")
    assert done == [
        ("namespaces/public/default/0x00000000_0x40000000/unload", "a:8080"),
        ("namespaces/public/default/0x00000000_0x40000000/split", None),
    ]
    with pytest.raises(InvalidNameError, match="is not a bundle"):
        brokers.split("public/default/0x00", "http://b:8080")


def test_a_broker_that_is_drained_gives_each_bundle_to_another(done: Done, capsys: pytest.CaptureFixture[str]) -> None:
    brokers.drain("b:8080", url="http://b:8080", as_json=True)
    moved = json.loads(capsys.readouterr().out)
    assert [each["brokerId"] for each in moved] == ["a:8080", "a:8080"]
    draining = "magnetar/brokers/b:8080/draining"
    assert done == [(draining, None), *((f"namespaces/{each['bundle']}/unload", "a:8080") for each in moved)]
    brokers.drain("b:8080", undo=True, url="http://b:8080")
    assert done[-1] == (f"not {draining}", None)


def test_a_broker_that_is_unknown_or_alone_is_not_drained(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentError, match="'x' is not a broker of the cluster; it has: a:8080, b:8080"):
        brokers.drain("x", url="http://b:8080")
    drained = FOUND[0] | {"report": {"isDraining": True}}
    for found in (FOUND[1:], [drained, FOUND[1]]):
        monkeypatch.setitem(ANSWERS, "magnetar/brokers", found)
        with pytest.raises(MagnetarError, match="the only broker of the cluster that is not being drained"):
            brokers.drain("b:8080", url="http://b:8080")
