"""Expressions that bring names of topics, message ids and marks into the forms that an audit compares.

Format:    a place is one form for all: `ledger:entry:batch`, or `partition:offset` of Kafka. A message id without a
           position, as a broker answers for a duplicate that it did not store, has no place.
Failure:   ANSI mode would end the job at the first malformed number; `try_cast` makes it null.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

_PARTITION: Final = r"-partition-(\d+)$"


def full_topic(topic: Column, *, qualified: bool) -> Column:
    """Does `whole_topic` of options.py as an expression."""
    name = F.regexp_replace(topic, _PARTITION, "")
    if not qualified:
        return F.when(name.contains("://"), name).otherwise(topic)  # A topic of Kafka may have any name.
    return (
        F.when(name.contains("://"), name)
        .when(name.contains("/"), F.concat(F.lit("persistent://"), name))
        .otherwise(F.concat(F.lit("persistent://public/default/"), name))
    )


def partition_of(topic: Column) -> Column:
    number = F.regexp_extract(topic, _PARTITION, 1).try_cast("int")
    return F.when(topic.contains("://"), number)


def partition_in(message_id: Column) -> Column:
    """Takes `ledger:entry:partition:batch`, or Kafka's `partition:offset`."""
    parts = F.split(message_id, ":")
    number = F.when(F.size(parts) == 4, _part(parts, 2)).when(F.size(parts) == 2, _part(parts, 0))
    return number.try_cast("int")


def place_of(message_id: Column) -> Column:
    """Returns `ledger:entry:partition:batch` without its partition, which the ledger implies. A message outside of a
    batch counts as the first of one: clients disagree about a batch of one message."""
    parts = F.split(message_id, ":")
    batch = F.when(_part(parts, 3).try_cast("int") > 0, _part(parts, 3)).otherwise(F.lit("0"))
    entry = F.concat_ws(":", _part(parts, 0), _part(parts, 1), batch)
    return (
        F.when(message_id.startswith("-1:"), F.lit(None)).when(F.size(parts).between(3, 4), entry).otherwise(message_id)
    )


def numbers_of(place: Column, count: int) -> list[Column]:
    """Returns the numbers between its colons; null for missing ones."""
    parts = F.split(place, ":")
    return [_part(parts, number).try_cast("bigint") for number in range(count)]


def producer_of(mark: Column) -> Column:
    """Returns the producer of `producer:sequence`; the name may have colons of its own."""
    return F.nullif(F.regexp_extract(mark, r"^(.*):(\d+)$", 1), F.lit(""))


def sequence_of(mark: Column) -> Column:
    return F.regexp_extract(mark, r"^(.*):(\d+)$", 2).try_cast("bigint")


def _part(parts: Column, number: int) -> Column:
    """Returns null when there are fewer parts."""
    return F.get(parts, F.lit(number))
