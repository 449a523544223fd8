"""The registry: names, sharing, and publishing by callback."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from magnetar.runtime.metrics import Metrics


def samples(metrics: Metrics) -> dict[str, float]:
    """`name{label="value"}` → value, read back by Prometheus's own parser."""
    found = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            labels = ",".join(f'{key}="{value}"' for key, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def test_new_registry_has_nothing_in_it() -> None:
    assert Metrics().render() == b""


def test_counter_gauge_and_histogram_are_rendered() -> None:
    metrics = Metrics()
    metrics.counter("magnetar_bookie_adds_total", "Adds.", ("result",)).labels("ok").inc(3)
    metrics.gauge_callback("magnetar_bookie_queue_entries", "Entries waiting.", lambda: 7)
    metrics.histogram("magnetar_bookie_add_seconds", "Time of an add.", buckets=(0.1, 1.0)).observe(0.5)
    found = samples(metrics)
    assert found.pop("magnetar_bookie_add_seconds_sum") == 0.5
    assert found == {
        'magnetar_bookie_adds_total{result="ok"}': 3,
        "magnetar_bookie_queue_entries": 7,
        'magnetar_bookie_add_seconds_bucket{le="0.1"}': 0,
        'magnetar_bookie_add_seconds_bucket{le="1.0"}': 1,
        'magnetar_bookie_add_seconds_bucket{le="+Inf"}': 1,
        "magnetar_bookie_add_seconds_count": 1,
    }


def test_two_components_that_ask_alike_share_one_metric() -> None:
    metrics = Metrics()
    first = metrics.counter("magnetar_metadata_reads_total", "Reads.", ("store",))
    assert metrics.counter("magnetar_metadata_reads_total", "Reads.", ("store",)) is first
    histogram = metrics.histogram("magnetar_metadata_read_seconds", "Time of a read.")
    assert metrics.histogram("magnetar_metadata_read_seconds", "Time of a read.") is histogram


def test_same_name_with_another_definition_is_a_bug() -> None:
    metrics = Metrics()
    metrics.gauge_callback("magnetar_metadata_watches", "Watches.", lambda: 1, {"store": "a"})
    with pytest.raises(AssertionError, match="defined twice"):
        metrics.counter("magnetar_metadata_watches", "Watches.", ("store",))
    with pytest.raises(AssertionError, match="defined twice"):
        metrics.gauge_callback("magnetar_metadata_watches", "Other words.", lambda: 1, {"store": "a"})
    with pytest.raises(AssertionError, match="defined twice"):
        metrics.gauge_callback("magnetar_metadata_watches", "Watches.", lambda: 1)
    metrics.histogram("magnetar_metadata_read_seconds", "Time.", buckets=(1.0,))
    with pytest.raises(AssertionError, match="defined twice"):
        metrics.histogram("magnetar_metadata_read_seconds", "Time.", buckets=(2.0,))


@pytest.mark.parametrize("name", ["adds_total", "magnetar_total", "magnetar_Bookie_adds_total", "magnetar_bookie_adds"])
def test_counter_must_be_named_by_the_rule(name: str) -> None:
    with pytest.raises(AssertionError, match="metric"):
        Metrics().counter(name, "Adds.")


@pytest.mark.parametrize("name", ["queue", "magnetar_queue", "magnetar__queue_entries", "magnetar_bookie_adds_total"])
def test_gauge_must_be_named_by_the_rule(name: str) -> None:
    with pytest.raises(AssertionError, match="metric"):
        Metrics().gauge_callback(name, "Something.", lambda: 1)


def test_refused_name_leaves_nothing_behind() -> None:
    metrics = Metrics()
    with pytest.raises(AssertionError):
        metrics.gauge_callback("magnetar_bookie_adds_total", "Adds.", lambda: 1)
    metrics.counter("magnetar_bookie_adds_total", "Adds.")


def test_plain_int_is_published_by_callback_when_scraped() -> None:
    class Component:
        adds = 0

    component, metrics = Component(), Metrics()
    metrics.counter_callback("magnetar_bookie_adds_total", "Adds.", lambda: component.adds)
    assert samples(metrics) == {"magnetar_bookie_adds_total": 0}
    component.adds += 41
    assert samples(metrics) == {"magnetar_bookie_adds_total": 41}


def test_callbacks_of_two_components_are_told_apart_by_labels_or_added_up() -> None:
    metrics = Metrics()
    for store, value in (("a", 1), ("b", 2), ("b", 3)):
        metrics.gauge_callback("magnetar_metadata_watches", "Watches.", lambda value=value: value, {"store": store})
    assert samples(metrics) == {
        'magnetar_metadata_watches{store="a"}': 1,
        'magnetar_metadata_watches{store="b"}': 5,
    }


def test_closed_component_publishes_nothing_more() -> None:
    metrics = Metrics()
    end = metrics.gauge_callback("magnetar_metadata_watches", "Watches.", lambda: 1)
    assert samples(metrics) == {"magnetar_metadata_watches": 1}
    end()
    end()
    assert samples(metrics) == {}


def test_registries_share_nothing() -> None:
    first, second = Metrics(), Metrics()
    first.gauge_callback("magnetar_bookie_queue_entries", "Entries waiting.", lambda: 1)
    assert second.render() == b""
