"""The options of a write, and the plan that is made of them on the driver and sent to every task. Nothing is opened.

Format:    Spark passes names of options in lower case, values as text. The owner publishes, over all restarts:
           `spark/QUERY` for a stream; for a batch with a jobId the job and its target (staging/records.py), for one
           without it a random name.
Failure:   refused are an unknown name, with the nearest known one; a value of the wrong kind; `overwrite`. All of it
           happens before any request to the cluster.
Read next: docs/spark-sink.md (what each option means)
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

import pyarrow as pa

from magnetar.client.topics import full_name
from magnetar.errors import ConfigError, InvalidNameError
from magnetar.spark.cluster import ClusterOptions
from magnetar.spark.encoding.layout import Layout, plan_layout
from magnetar.spark.encoding.routing import Target
from magnetar.spark.encoding.typed_values import record_definition
from magnetar.spark.options import choice, known_options, number
from magnetar.staging.records import JobIdentity
from magnetar.staging.register import OWNER_BYTES_MAX
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import LZ4, NONE, SNAPPY, ZLIB, ZSTD

WRITE_OPTIONS: Final = (
    "serviceUrl",
    "adminUrl",
    "topic",
    "delivery",
    "jobId",
    "compression",
    "schema",
    "batchingMaxBytes",
    "batchBuilder",
)
_FROM_SAVE: Final = "path"  # Spark's own name for the argument of `save("orders")`.
_COMPRESSIONS: Final = {"none": NONE, "lz4": LZ4, "zlib": ZLIB, "zstd": ZSTD, "snappy": SNAPPY}
_BATCH_BUILDERS: Final = ("default", "key_based")
ENTRY_BYTES: Final = 512 * 2**10
_ENTRY_BYTES_MIN: Final = 1024
_ENTRY_BYTES_MAX: Final = 4 * 2**20  # Below the brokers' default limit of 5 MiB.
_JOB_ID_CHARACTERS_MAX: Final = 200
_JOB_ID_ENCODED_MAX: Final = OWNER_BYTES_MAX - 32  # An owner's name has a prefix before it, and a target after it.
PERSISTENT: Final = "persistent://"
STREAM_OWNER = "spark/"
JOB_OWNER = "spark-job/"


class Delivery(enum.Enum):
    EXACTLY_ONCE = "exactly-once"
    DEDUP = "dedup"


class ValueSchema(enum.Enum):
    NONE = "none"
    JSON = "json"
    AVRO = "avro"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The options. Picklable: they travel to every task."""

    cluster: ClusterOptions
    topic: str = ""
    """The full name; empty: each row has its topic."""
    delivery: Delivery = Delivery.EXACTLY_ONCE
    job_id: str = ""
    compression: int = NONE
    schema: ValueSchema = ValueSchema.NONE
    entry_bytes: int = ENTRY_BYTES
    is_by_key: bool = False
    """Whether an entry never has different keys."""


def parse_write_options(given: Mapping[str, str]) -> WriteOptions:
    known = known_options(given, WRITE_OPTIONS, [_FROM_SAVE])
    options = {name: text for name, value in known.items() if (text := value.strip())}
    return WriteOptions(
        cluster=ClusterOptions.of(options.get("serviceUrl"), options.get("adminUrl")),
        topic=_topic(options),
        delivery=Delivery(choice(options, "delivery", [each.value for each in Delivery])),
        job_id=_job_id(options),
        compression=_COMPRESSIONS[choice(options, "compression", list(_COMPRESSIONS))],
        schema=ValueSchema(choice(options, "schema", [each.value for each in ValueSchema])),
        entry_bytes=number(options, "batchingMaxBytes", _ENTRY_BYTES_MIN, _ENTRY_BYTES_MAX) or ENTRY_BYTES,
        is_by_key=choice(options, "batchBuilder", _BATCH_BUILDERS) == _BATCH_BUILDERS[1],
    )


def require_append(*, overwrite: bool, is_stream: bool = False) -> None:
    """Raises ConfigError for a batch with mode overwrite, and for a stream with outputMode complete."""
    if overwrite and is_stream:
        raise ConfigError(
            'a topic cannot be overwritten by outputMode("complete"): use outputMode("append"), which for an '
            "aggregation needs withWatermark, or write each batch as messages in foreachBatch, with the option jobId"
        )
    if overwrite:
        raise ConfigError(
            'a topic cannot be overwritten: use .mode("append"), and delete or trim the topic first if it must be empty'
        )


def _topic(options: Mapping[str, str]) -> str:
    topic, path = options.get("topic", ""), options.get(_FROM_SAVE, "")
    if topic and path:
        raise ConfigError(f"both option topic ({topic}) and save({path!r}) name a topic: give one of them")
    return full_topic(topic or path) if topic or path else ""


def full_topic(name: str) -> str:
    try:
        full = full_name(name)
    except InvalidNameError as error:
        raise ConfigError(str(error)) from None
    if not full.startswith(PERSISTENT):
        raise ConfigError(f"{full} is not persistent: only persistent topics can be written to")
    return full


def _job_id(options: Mapping[str, str]) -> str:
    job_id = options.get("jobId", "")
    if len(job_id) > _JOB_ID_CHARACTERS_MAX:
        raise ConfigError(f"option jobId has {len(job_id)} characters: at most {_JOB_ID_CHARACTERS_MAX} are allowed")
    if (encoded := len(quote(job_id, safe=""))) > _JOB_ID_ENCODED_MAX:
        raise ConfigError(
            f"option jobId takes {encoded} bytes in a path of the metadata, where anything but letters and digits "
            f"takes 3 to 12: at most {_JOB_ID_ENCODED_MAX} are allowed. Give a shorter one"
        )
    return job_id


@dataclass(frozen=True, slots=True)
class WritePlan:
    options: WriteOptions
    layout: Layout
    definition: str = ""
    """The definition of the value's schema; empty: there is none."""
    target: Target | None = None
    """The topic for all rows; None: each row has one."""


@dataclass(frozen=True, slots=True)
class TaskIdentity:
    owner: str
    epoch: int
    partition: int
    attempt: int
    task_attempt_id: int
    time_zone: str = ""
    """The session's zone; empty if the session sets none."""


def job_identity(job_id: str, topic: str) -> JobIdentity:
    """`topic` is the full name; empty if each row names its topic."""
    return JobIdentity(JOB_OWNER + job_id, topic)


def owner_of_job(options: WriteOptions, random_id: str) -> str:
    """Returns the owner of a batch. With delivery=dedup the target is left out: the brokers know repeats by topic
    already, and by the name of the producer, which must not change."""
    if options.job_id and options.delivery is Delivery.EXACTLY_ONCE:
        return job_identity(options.job_id, options.topic).owner
    return JOB_OWNER + (options.job_id or random_id)


def plan_write(schema: pa.Schema, options: WriteOptions) -> WritePlan:
    """Plans without the cluster; `target` is not known yet. Raises `ConfigError`."""
    is_typed = options.schema is not ValueSchema.NONE
    layout = plan_layout(schema, is_typed=is_typed)
    if not options.topic and not layout.topic:
        raise ConfigError(
            'which topic? Give option topic, as in .option("topic", "orders"), or a column topic. A table of '
            "CREATE TABLE keeps no options: use CREATE TEMPORARY VIEW … USING magnetar OPTIONS (topic '…')"
        )
    return WritePlan(options, layout, record_definition(layout.fields) if is_typed else "")
