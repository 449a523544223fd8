"""Reports and averages are those of Pulsar's modular load manager, byte by byte (tests/golden/PulsarCluster.java)."""

from __future__ import annotations

import dataclasses
import json

import pytest

from magnetar.broker.cluster.load_report import (
    Amount,
    BrokerReport,
    BundleAverages,
    BundleStats,
    Usage,
    encode_broker_averages,
)
from magnetar.broker.cluster.placement import BundleLoad
from magnetar.broker.ownership import BrokerAddress
from magnetar.errors import MalformedMetadataError
from tests.unit.broker import golden

STATS = BundleStats(10.5, 1050.0, 21.0, 2100.0, consumers=2, producers=1, topics=3, cache_bytes=7)
BUNDLE = "public/default/0x00000000_0x40000000"


def written(name: str) -> bytes:
    return golden.cluster()[name].encode()


def started_ms(name: str) -> int:
    """The one field that Apache's class gives no way to set."""
    return int(json.loads(written(name))["startTimestamp"])


def report(name: str) -> BrokerReport:
    listeners = {"pulsar": {"internal": "pulsar://b1.internal:6650"} if name == "broker full" else {}}
    address = BrokerAddress("b1:8080", "http://b1:8080", {"pulsar": "pulsar://b1:6650"}, listeners)
    return BrokerReport(address=address, updated_ms=1_700_000_000_000, started_ms=started_ms(name))


FULL = {
    "usage": Usage(
        Amount(50.0, 200.0), Amount(100.0, 1024.0), Amount(1.0, 64.0), Amount(5.0, 1000.0), Amount(6.0, 1000.0)
    ),
    "bundles": {BUNDLE: STATS},
    "gained": (BUNDLE,),
    "protocols": {"kafka": "b1:9092"},
}


def test_a_report_has_the_bytes_of_apaches() -> None:
    assert report("broker new").encode() == written("broker new")
    full = dataclasses.replace(report("broker full"), **FULL)  # type: ignore[arg-type]
    assert full.encode() == written("broker full")


def test_apaches_reports_are_read() -> None:
    assert BrokerReport.decode("b1:8080", "/b", written("broker new")) == report("broker new")
    full = dataclasses.replace(report("broker full"), **FULL)  # type: ignore[arg-type]
    assert BrokerReport.decode("b1:8080", "/b", written("broker full")) == full


def test_the_busiest_resource_is_the_one_with_the_largest_share() -> None:
    assert FULL["usage"].busiest == 0.25  # type: ignore[union-attr]
    assert Usage().busiest == 0.0


def test_a_broker_of_the_other_load_manager_is_recognised() -> None:
    found = BrokerReport.decode("b1:8080", "/b", written("extensible broker"))
    assert found.is_extensible
    assert not found.is_modular
    assert BrokerReport.decode("b1:8080", "/b", b"{}").is_modular  # As a release wrote it that lacks the field.


@pytest.mark.parametrize("value", [b"", b"[]", b'{"lastStats": 7}', b'{"cpu": "much"}', b'{"lastUpdate": "now"}'])
def test_a_node_that_is_no_report_is_refused_with_its_path(value: bytes) -> None:
    with pytest.raises(MalformedMetadataError, match="/loadbalance/brokers/b1:8080"):
        BrokerReport.decode("b1:8080", "/loadbalance/brokers/b1:8080", value)


def test_reports_differ_by_their_largest_relative_change() -> None:
    before = dataclasses.replace(report("broker new"), bundles={BUNDLE: STATS})
    assert before.differs_by(before) == 0.0
    busier = dataclasses.replace(before, bundles={BUNDLE: dataclasses.replace(STATS, messages_in=13.65)})
    assert busier.differs_by(before) == pytest.approx(0.1)
    assert before.differs_by(report("broker new")) == float("inf")
    assert dataclasses.replace(before, usage=Usage(cpu=Amount(50, 100))).differs_by(before) == 0.5


def test_averages_have_the_bytes_of_apaches() -> None:
    seen = BundleAverages().with_sample(STATS).with_sample(dataclasses.replace(STATS, messages_in=30.5))
    assert seen.encode() == written("bundle after two")
    for _ in range(20):
        seen = seen.with_sample(STATS)
    assert seen.encode() == written("bundle after many")
    assert BundleAverages.decode("/b", written("bundle after many")) == seen


def test_a_bundle_costs_its_average_rates_and_what_it_has_now() -> None:
    averages = BundleAverages().with_sample(STATS)
    assert averages.load(STATS) == BundleLoad(31.5, 3150.0, topics=3, sessions=3)
    assert averages.load(BundleStats()) == BundleLoad(31.5, 3150.0)


def test_the_averages_of_a_broker_are_the_sums_of_its_bundles() -> None:
    assert encode_broker_averages([]) == written("broker average")
    two = json.loads(encode_broker_averages([BundleAverages().with_sample(STATS)] * 2))
    assert two["longTermMsgRateIn"] == two["shortTermMsgRateIn"] == 21.0


@pytest.mark.parametrize("value", [b"{}", b'{"shortTermData": 1, "longTermData": {}}', b"junk"])
def test_a_node_that_is_no_load_of_a_bundle_is_refused(value: bytes) -> None:
    with pytest.raises(MalformedMetadataError, match="/loadbalance/bundle-data/x"):
        BundleAverages.decode("/loadbalance/bundle-data/x", value)


def test_a_broker_that_is_drained_says_so_in_a_field_that_is_absent_otherwise() -> None:
    ours = report("broker new")
    assert b"raining" not in ours.encode()
    drained = dataclasses.replace(ours, is_draining=True)
    assert BrokerReport.decode("b1:8080", "/path", drained.encode()).is_draining
    assert not BrokerReport.decode("b1:8080", "/path", written("broker new")).is_draining
