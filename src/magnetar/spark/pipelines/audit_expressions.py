"""Expressions that bring names of topics, message ids and marks into the forms that an audit compares.

Place:     where a message is, in one form for all: `ledger:entry:batch`, or `partition:offset` of Kafka. A message id
           without a position, as a broker answers for a duplicate that it did not store, is no place.
Numbers:   ANSI mode would end the job at the first malformed one; `try_cast` makes it null.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

_PARTITION: Final = r"-partition-(\d+)$"


def full_topic(topic: Column, *, qualified: bool) -> Column:
    """`whole_topic` of audit_options.py, as an expression."""
    name = F.regexp_replace(topic, _PARTITION, "")
    if not qualified:
        return F.when(name.contains("://"), name).otherwise(topic)  # Of Kafka, whose topics may be called anything.
    return (
        F.when(name.contains("://"), name)
        .when(name.contains("/"), F.concat(F.lit("persistent://"), name))
        .otherwise(F.concat(F.lit("persistent://public/default/"), name))
    )


def partition_of(topic: Column) -> Column:
    number = F.regexp_extract(topic, _PARTITION, 1).try_cast("int")
    return F.when(topic.contains("://"), number)


def partition_in(message_id: Column) -> Column:
    """Of `ledger:entry:partition:batch`, and of Kafka's `partition:offset`."""
    parts = F.split(message_id, ":")
    number = F.when(F.size(parts) == 4, _part(parts, 2)).when(F.size(parts) == 2, _part(parts, 0))
    return number.try_cast("int")


def place_of(message_id: Column) -> Column:
    """`ledger:entry:partition:batch` without its partition, which says nothing that the ledger does not say. A message
    that is no batch counts as the first of one: clients disagree about what a batch of one message is."""
    parts = F.split(message_id, ":")
    batch = F.when(_part(parts, 3).try_cast("int") > 0, _part(parts, 3)).otherwise(F.lit("0"))
    entry = F.concat_ws(":", _part(parts, 0), _part(parts, 1), batch)
    return (
        F.when(message_id.startswith("-1:"), F.lit(None)).when(F.size(parts).between(3, 4), entry).otherwise(message_id)
    )


def numbers_of(place: Column, count: int) -> list[Column]:
    """The numbers between its colons; null where there is none."""
    parts = F.split(place, ":")
    return [_part(parts, number).try_cast("bigint") for number in range(count)]


def producer_of(mark: Column) -> Column:
    """Of `producer:sequence`; the name may have colons of its own."""
    return F.nullif(F.regexp_extract(mark, r"^(.*):(\d+)$", 1), F.lit(""))


def sequence_of(mark: Column) -> Column:
    return F.regexp_extract(mark, r"^(.*):(\d+)$", 2).try_cast("bigint")


def _part(parts: Column, number: int) -> Column:
    """Null when there are not so many."""
    return F.get(parts, F.lit(number))
