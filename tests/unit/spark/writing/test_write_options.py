"""What a user may ask of a write, and the error if it cannot be done."""

from __future__ import annotations

import pyarrow as pa
import pytest

from magnetar.errors import ConfigError
from magnetar.spark.options import check_options
from magnetar.spark.writing.plan import (
    Delivery,
    ValueSchema,
    owner_of_job,
    parse_write_options,
    plan_write,
    require_append,
)
from magnetar.staging.register import owner_path
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import NONE, ZSTD

VALUE = pa.schema([("value", pa.binary())])


def test_defaults_are_exactly_once_without_compression_or_schema() -> None:
    options = parse_write_options({"topic": "out", "checkpointlocation": "/x", "queryname": "q"})

    assert options.topic == "persistent://public/default/out"
    assert (options.delivery, options.schema, options.compression) == (Delivery.EXACTLY_ONCE, ValueSchema.NONE, NONE)


def test_names_and_words_are_taken_in_any_case() -> None:
    options = parse_write_options(
        {"Path": "t/n/x", "DELIVERY": "Dedup", "jobid": "j", "compression": "ZSTD", "schema": "Avro"}
    )

    assert (options.topic, options.job_id) == ("persistent://t/n/x", "j")
    assert (options.delivery, options.schema, options.compression) == (Delivery.DEDUP, ValueSchema.AVRO, ZSTD)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"topc": "x"}, "did you mean 'topic'"),
        ({"topic": "x", "delivery": "exactly"}, "did you mean 'exactly-once'"),
        ({"topic": "x", "compression": "gzip"}, "Known are none, lz4"),
        ({"topic": "x", "path": "y"}, "give one of them"),
        ({"topic": "non-persistent://a/b/c"}, "not persistent"),
        ({"topic": "a/b"}, "not a topic"),
        ({"topic": "x", "batchingMaxBytes": "5"}, "at least 1024"),
        ({"topic": "x", "batchbuilder": "keys"}, "did you mean 'key_based'"),
        ({"topic": "x", "jobId": "x" * 201}, "at most 200"),
        ({"topic": "x", "jobId": "/" * 170}, "Give a shorter one"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_write_options(given)


def test_overwriting_a_topic_is_refused() -> None:
    with pytest.raises(ConfigError, match="append"):
        require_append(overwrite=True)


def test_a_stream_that_would_overwrite_hears_of_its_output_mode() -> None:
    with pytest.raises(ConfigError, match=r'outputMode\("append"\).*foreachBatch'):
        require_append(overwrite=True, is_stream=True)


def test_a_write_without_any_topic_is_refused_when_it_is_planned() -> None:
    with pytest.raises(ConfigError, match="which topic"):
        plan_write(VALUE, parse_write_options({}))


def test_a_topic_column_is_enough() -> None:
    schema = pa.schema([("value", pa.binary()), ("topic", pa.string())])

    assert plan_write(schema, parse_write_options({})).layout.topic == "topic"


def test_unknown_options_name_the_nearest_known_one_whatever_its_case() -> None:
    with pytest.raises(ConfigError, match="did you mean 'startingOffsets'"):
        check_options(["startingofset"], ["topic", "startingOffsets", "endingOffsets"])
    check_options(["TOPIC", "checkpointLocation"], ["topic"])


def test_the_target_is_part_of_a_job_but_not_of_the_names_of_deduplicated_producers() -> None:
    def owner(topic: str, **options: str) -> str:
        return owner_of_job(parse_write_options({"topic": topic, **options}), "random")

    assert owner("fa", jobId="q/1") != owner("fb", jobId="q/1")
    assert owner("fa", jobId="q/1") == owner("persistent://public/default/fa", jobId="q/1")
    assert owner("fa", jobId="q/1", delivery="dedup") == owner("fb", jobId="q/1", delivery="dedup") == "spark-job/q/1"
    assert owner("fa") == "spark-job/random"


def test_the_longest_job_id_makes_an_owner_that_can_be_stored() -> None:
    longest = parse_write_options({"topic": "x", "jobId": "/" * 160})
    assert owner_path(owner_of_job(longest, ""))
