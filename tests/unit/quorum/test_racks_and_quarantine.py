"""Where racks come from, who is set aside, how free disk weighs, and the settings for all of it."""

from __future__ import annotations

import json
from contextlib import suppress
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.config.ledger import PlacementConfig, rack_pairs
from magnetar.errors import ConfigError, MalformedMetadataError
from magnetar.ids import BookieId
from magnetar.quorum.candidates import TRACKED_MAX, Quarantine, RackTable, Topology, normal_location, parse_bookies_node
from magnetar.quorum.placement import RandomPlacement, disk_weights
from magnetar.quorum.rack_aware import RackAwarePlacement, RegionAwarePlacement, placement_policy

B1, B2, B3 = BookieId("h1:3181"), BookieId("h2:3181"), BookieId("h3:3181")


# --- Pulsar's node ----------------------------------------------------------------------------------------------------


def test_the_node_as_pulsars_admin_command_writes_it() -> None:
    table = parse_bookies_node(
        b'{"default":{"h1:3181":{"rack":"/eu/r1","hostname":"h1"},"h2:3181":{"rack":"r2","hostname":null}},'
        b'"other":{"h3:3181":{"rack":"/us/r1"}}}'
    )
    assert [table.location_of(bookie) for bookie in (B1, B2, B3)] == ["/eu/r1", "/r2", "/us/r1"]


@pytest.mark.parametrize("value", [b"", b"  \n", b"{}", b"null", b'{"default":{}}'])
def test_an_empty_node_is_an_empty_table(value: bytes) -> None:
    assert parse_bookies_node(value) == RackTable()


@pytest.mark.parametrize("info", [{}, {"rack": None}, {"rack": ""}, {"rack": "/"}, {"rack": " / "}, {"hostname": "h1"}])
def test_a_bookie_without_a_rack_is_of_unknown_place(info: dict[str, str | None]) -> None:
    table = parse_bookies_node(json.dumps({"default": {"h1:3181": info}}).encode())
    assert table.location_of(B1) is None
    assert Topology(table).rack_of(B1) == "/default-rack"


def test_unknown_fields_are_ignored() -> None:
    value = b'{"default":{"h1:3181":{"rack":"/r1","hostname":"h1","colour":{"deep":[1]}}}}'
    assert parse_bookies_node(value).location_of(B1) == "/r1"


def test_of_several_groups_the_last_by_name_counts() -> None:
    value = b'{"z":{"h1:3181":{"rack":"/z"}},"a":{"h1:3181":{"rack":"/a"}}}'
    assert parse_bookies_node(value).location_of(B1) == "/z"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"{", "it is not JSON"),
        (b"\xff\xfe{", "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b"[]", "the value is not a JSON object"),
        (b'{"g":[]}', "group 'g' is not a JSON object"),
        (b'{"g":null}', "group 'g' is not a JSON object"),
        (b'{"g":{"h1:3181":"/r1"}}', "bookie 'h1:3181' is not a JSON object"),
        (b'{"g":{"h1:3181":{"rack":7}}}', "the rack of bookie 'h1:3181' is not a string"),
    ],
)
def test_a_malformed_node_is_refused_with_the_reason(value: bytes, why: str) -> None:
    with pytest.raises(MalformedMetadataError, match="racks at /bookies") as caught:
        parse_bookies_node(value)
    assert why in str(caught.value)


@given(st.binary(max_size=40))
def test_any_bytes_give_a_table_or_that_error(value: bytes) -> None:
    with suppress(MalformedMetadataError):
        parse_bookies_node(value)


# --- looking up -------------------------------------------------------------------------------------------------------


def test_a_bookie_is_found_by_id_then_by_host() -> None:
    table = RackTable.of([("h1:3181", "/r1"), ("h1:3182", "/r2"), ("h2", "/r3"), ("bookie-7", "/r4")])
    assert table.location_of(BookieId("h1:3181")) == "/r1"
    assert table.location_of(BookieId("h1:3182")) == "/r2"
    assert table.location_of(BookieId("h1:9999")) == "/r2"  # Same machine: the last one said about it.
    assert table.location_of(BookieId("h2:3181")) == "/r3"
    assert table.location_of(BookieId("bookie-7"), host="h1") == "/r4"
    assert table.location_of(BookieId("bookie-8"), host="h2") == "/r3"
    assert table.location_of(BookieId("bookie-9")) is None


def test_a_topology_uses_the_hosts_that_bookies_have_published() -> None:
    topology = Topology(RackTable.of([("h1:3181", "/eu/r1")]), {BookieId("bookie-7"): "h1"})
    assert topology.rack_of(BookieId("bookie-7")) == "/eu/r1"
    assert topology.region_of(BookieId("bookie-7")) == "eu"
    assert topology.region_of(BookieId("bookie-8")) == "default-region"


def test_a_table_over_another_goes_first_even_if_it_names_only_the_host() -> None:
    table = RackTable.of([("h1", "/mine")]).over(RackTable.of([("h1:3181", "/theirs"), ("h2:3181", "/theirs")]))
    assert table.location_of(B1) == "/mine"
    assert table.location_of(B2) == "/theirs"


@pytest.mark.parametrize(
    ("text", "location"),
    [("/eu/r1", "/eu/r1"), ("eu/r1", "/eu/r1"), (" /eu//r1/ ", "/eu/r1"), ("r1", "/r1"), ("/", None), ("", None)],
)
def test_locations_are_normalised(text: str, location: str | None) -> None:
    assert normal_location(text) == location


# --- quarantine -------------------------------------------------------------------------------------------------------


def quarantine_of_three() -> Quarantine:
    return Quarantine(errors=3, interval_s=60, quarantine_s=100)


def test_a_bookie_is_set_aside_by_the_error_that_is_one_too_many() -> None:
    aside = quarantine_of_three()
    assert [aside.on_error(B1, now) for now in (0.0, 1.0, 2.0)] == [False, False, True]
    assert aside.quarantined(2.0) == (B1,)


def test_errors_far_apart_do_not_add_up() -> None:
    aside = quarantine_of_three()
    assert [aside.on_error(B1, now) for now in (0.0, 40.0, 61.0, 101.0)] == [False, False, False, False]
    assert aside.on_error(B1, 102.0 - 1.0)  # 61, 101, 101: three within a minute.


def test_errors_at_the_two_ends_of_the_interval_add_up() -> None:
    aside = quarantine_of_three()
    assert [aside.on_error(B1, now) for now in (0.0, 30.0, 60.0)] == [False, False, True]


def test_bookies_are_counted_one_by_one() -> None:
    aside = quarantine_of_three()
    assert not any(aside.on_error(bookie, 0.0) for bookie in (B1, B2, B1, B2))
    assert aside.quarantined(0.0) == ()


def test_a_bookie_comes_back_after_the_time_with_a_clean_slate() -> None:
    aside = quarantine_of_three()
    for now in (0.0, 0.0, 0.0, 50.0, 99.0, 99.5):
        aside.on_error(B1, now)
    assert aside.quarantined(99.9) == (B1,)
    assert aside.quarantined(100.0) == ()
    assert not aside.on_error(B1, 100.0)
    assert not aside.on_error(B1, 100.1)
    assert aside.on_error(B1, 100.2)
    assert aside.quarantined(200.1) == (B1,)


def test_errors_from_before_a_short_quarantine_do_not_count_after_it() -> None:
    aside = Quarantine(errors=3, interval_s=60, quarantine_s=5)
    assert [aside.on_error(B1, now) for now in (0.0, 0.0, 0.0)] == [False, False, True]
    assert [aside.on_error(B1, now) for now in (5.0, 6.0, 7.0)] == [False, False, True]


def test_each_bookie_has_its_own_time() -> None:
    aside = quarantine_of_three()
    for bookie, now in ((B2, 0.0), (B1, 10.0), (B3, 20.0)):
        for _ in range(3):
            aside.on_error(bookie, now)
    assert aside.quarantined(20.0) == (B1, B2, B3)
    assert aside.quarantined(105.0) == (B1, B3)
    assert aside.quarantined(119.9) == (B3,)


def test_ids_that_come_and_go_do_not_pile_up() -> None:
    aside = Quarantine(errors=2, interval_s=60, quarantine_s=100)
    for number in range(TRACKED_MAX + 50):
        aside.on_error(BookieId(f"once-{number}"), 0.0)
        aside.on_error(BookieId(f"twice-{number}"), 0.0)
        aside.on_error(BookieId(f"twice-{number}"), 0.0)
    assert len(aside.quarantined(0.0)) == TRACKED_MAX
    assert not aside.on_error(BookieId("once-0"), 0.0)  # Forgotten: this counts as its first.
    assert aside.on_error(BookieId(f"once-{TRACKED_MAX + 49}"), 0.0)


def test_quarantine_can_be_turned_off() -> None:
    aside = Quarantine(errors=1, interval_s=60, quarantine_s=0)
    assert not aside.on_error(B1, 0.0)
    assert aside.quarantined(0.0) == ()


# --- free disk --------------------------------------------------------------------------------------------------------


def test_a_weight_is_free_disk_capped_at_a_multiple_of_the_median() -> None:
    assert disk_weights([B1, B2, B3], {B1: 10, B2: 20, B3: 1_000}, 3) == [10, 20, 60]


def test_unknown_and_full_disks_weigh_as_the_least_that_is_known() -> None:
    assert disk_weights([B1, B2, B3], {B1: 10, B2: 0}, 3) == [10, 10, 10]
    assert disk_weights([B1, B2, B3], {B2: 40, B3: 20}, 3) == [20, 40, 20]


def test_without_a_multiple_or_any_knowledge_all_weigh_the_same() -> None:
    assert disk_weights([B1, B2], {B1: 10, B2: 20}, None) == [1, 1]
    assert disk_weights([B1, B2], {B1: 0}, 3) == [1, 1]


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "policy"), [("random", RandomPlacement), ("rack", RackAwarePlacement), ("region", RegionAwarePlacement)]
)
def test_the_policy_is_the_one_that_is_named(name: str, policy: type) -> None:
    assert type(placement_policy(PlacementConfig(policy=name), Random(1))) is policy


def test_racks_can_be_configured_as_a_table() -> None:
    table = RackTable.of(rack_pairs("h1:3181=/eu/r1, h2 = r2 ,"))
    assert [table.location_of(bookie) for bookie in (B1, B2, B3)] == ["/eu/r1", "/r2", None]


@pytest.mark.parametrize("racks", ["h1", "=/r1", "h1=", "h1=/", "h1=/r1,h2"])
def test_a_malformed_table_is_refused_with_the_form(racks: str) -> None:
    with pytest.raises(ConfigError, match="does not have the form bookie=rack"):
        PlacementConfig(racks=racks)


def test_an_unknown_policy_is_refused_with_the_choices() -> None:
    with pytest.raises(ConfigError, match="is not one of random, rack, region"):
        PlacementConfig(policy="zone")
