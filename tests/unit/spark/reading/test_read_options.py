"""Options of a read: what is taken, and what is refused with what would be right."""

from __future__ import annotations

import pickle

import pytest

from magnetar.errors import ConfigError
from magnetar.spark.reading.options import LATEST, ReadVia, parse_read_options, require_batch, require_stream


def test_names_arrive_in_lower_case_and_short_topics_are_written_out() -> None:
    options = parse_read_options({"topic": "orders", "readvia": "Broker", "failondataloss": "false"})
    assert options.subject.names == ("persistent://public/default/orders",)
    assert (options.read_via, options.fail_on_data_loss) == (ReadVia.BROKER, False)
    assert pickle.loads(pickle.dumps(options)) == options


def test_an_unknown_option_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(ConfigError, match=r"maxMesagesPerTriger.*maxMessagesPerTrigger"):
        parse_read_options({"topic": "orders", "maxMesagesPerTriger": "5"})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "which topic"),
        ({"topic": "a", "topics": "b,c"}, "contradict"),
        ({"topic": "a,b"}, "use option topics"),
        ({"topics": "a,a"}, "twice"),
        ({"topic": "non-persistent://public/default/a"}, "keeps no messages"),
        ({"topic": "a/b"}, "not a topic"),
        ({"topicsPattern": "public/.*/orders"}, "namespace"),
        ({"topicsPattern": "orders-("}, "regular expression"),
        ({"topic": "a", "minPartitions": "many"}, "whole number"),
        ({"topic": "a", "minPartitions": "0"}, "at least 1"),
        ({"topic": "a", "failOnDataLoss": "maybe"}, "true or false"),
        ({"topic": "a", "readVia": "pigeon"}, "Known are auto, bookie, broker"),
        ({"topic": "a", "startingOffsets": "yesterday"}, "not a position in a topic"),
        ({"topic": "a", "startingOffsets": '{"a": {"x": 1}}'}, "number of a partition"),
        ({"topic": "a", "startingOffsets": '{"a": {"0": -7}}'}, "is not an index"),
        ({"topic": "a", "startingOffsets": '{"a": '}, "not JSON"),
        ({"topic": "a", "startingTime": "index:5"}, "is 'index:5': give a time"),
        (
            {"topic": "a", "endingTime": "banana"},
            "is 'banana': give a time .*, a time ago .* or milliseconds since 1970$",
        ),
        ({"topic": "a", "endingIndex": "-1"}, "at least 0"),
        ({"topic": "a", "subscription": " "}, "empty"),
        ({"topic": "a", "serviceUrl": "localhost"}, "pulsar://"),
    ],
)
def test_what_cannot_be_meant_is_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_read_options(given)


def test_a_stream_has_no_end_and_a_batch_no_trigger() -> None:
    with pytest.raises(ConfigError, match=r"endingOffsets is for spark\.read"):
        require_stream({"endingoffsets": "latest"})
    with pytest.raises(ConfigError, match=r"subscription is for spark\.readStream"):
        require_batch({"subscription": "s"})
    require_batch({"endingOffsets": "latest"})
    require_stream({"subscription": "s"})


def test_names_given_to_load_count_as_topics() -> None:
    assert parse_read_options({"path": "orders"}).subject.names == ("persistent://public/default/orders",)
    both = parse_read_options({"paths": '["a", "t/n/b"]'}).subject.names
    assert both == ("persistent://public/default/a", "persistent://t/n/b")


def test_a_pattern_may_have_a_comma_and_has_its_namespace_before_it() -> None:
    subject = parse_read_options({"topicsPattern": "t/n/orders-.{1,3}"}).subject
    assert (subject.namespace, subject.pattern) == ("t/n", "orders-.{1,3}")


def test_offsets_are_for_all_topics_or_for_each_and_its_partitions() -> None:
    given = '{"a": "earliest", "b": {"0": 42, "1": -1}, "c-partition-3": "12:34"}'
    start = parse_read_options({"topics": "a,b,c,d", "startingOffsets": given}).places.start
    name = "persistent://public/default/{}".format

    def of(topic: str, part: str) -> str:
        return start.of(name(topic), name(part), LATEST)[0].text

    assert of("a", "a-partition-1") == "earliest"
    assert (of("b", "b-partition-0"), of("b", "b-partition-1")) == ("index:42", "latest")
    assert (of("c", "c-partition-3"), of("c", "c-partition-2"), of("d", "d")) == ("12:34", "latest", "latest")


def test_ranges_narrow_what_offsets_say_and_are_never_exact() -> None:
    bound = parse_read_options({"topic": "a", "startingOffsets": "index:3", "startingIndex": "5"}).places.start
    assert [(each.text, each.is_exact) for each in bound.of("t", "t", LATEST)] == [
        ("index:3", True),
        ("index:5", False),
    ]


@pytest.mark.parametrize(("text", "expected"), [("1000", 1_000), ("-10s", 90_000), ("1970-01-01T00:00:05Z", 5_000)])
def test_a_time_of_a_range_is_a_time_or_so_long_ago(text: str, expected: int) -> None:
    bound = parse_read_options({"topic": "a", "endingTime": text}).places.end
    assert bound.time_ms(now_ms=100_000) == expected


def test_what_spark_adds_for_a_table_of_its_catalog_is_passed_over() -> None:
    given = {"option.topic": "orders", "provider": "magnetar", "topic": "orders", "owner": "me"}
    assert parse_read_options(given).subject.names == ("persistent://public/default/orders",)


@pytest.mark.parametrize("word", ["EARLIEST", " Earliest ", "earliest"])
def test_the_words_for_both_ends_of_a_topic_may_be_in_any_case(word: str) -> None:
    by_topic = parse_read_options({"topic": "a", "startingOffsets": f'{{"a": "{word}"}}'})
    assert list(by_topic.places.start.by_topic.values()) == ["earliest"]
    assert parse_read_options({"topic": "a", "startingOffsets": word}).places.start.default == "earliest"
