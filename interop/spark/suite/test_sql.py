"""Topics in SQL: views, options in a query, inserts, and auto-discovery without a call to register."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from interop.spark.suite.conftest import World


def sql_options(world: World, **more: str) -> str:
    return ", ".join(f"{name} '{value}'" for name, value in {**world.where, **more}.items())


def test_a_view_of_a_topic_is_selected_from_and_inserted_into(world: World) -> None:
    topic, target = world.new_topic(), world.new_topic()
    values = world.fill(topic, 20)
    world.spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW v USING magnetar OPTIONS ({sql_options(world, topic=topic)})")
    counted = world.spark.sql("SELECT count(*), min(index), max(index), count(DISTINCT key) FROM v").collect()[0]
    assert tuple(counted) == (20, 0, 19, 5)
    world.spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW t USING magnetar OPTIONS ({sql_options(world, topic=target)})")
    world.spark.sql("INSERT INTO t (key, value) SELECT key, value FROM v WHERE index >= 15")
    world.spark.sql("INSERT INTO t (value) VALUES (cast('by hand' AS BINARY))")
    rows = world.read(topic=target).orderBy("index").collect()
    assert sorted((row.key, row.value) for row in rows[:5]) == [
        (b"k%d" % (number % 5), values[number]) for number in range(15, 20)
    ]
    assert [(row.key, bytes(row.value)) for row in rows[5:]] == [(None, b"by hand")]
    assert world.spark.sql("SELECT * FROM v").count() == 20


def test_a_topic_is_added_to_and_never_replaced(world: World, refused: Callable[[Callable[[], Any]], str]) -> None:
    topic = world.new_topic()
    world.fill(topic, 3)
    given = sql_options(world, topic=topic)
    world.spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW o (value BINARY) USING magnetar OPTIONS ({given})")
    assert "append" in refused(lambda: world.spark.sql("INSERT OVERWRITE o VALUES (cast('x' AS BINARY))"))
    assert world.read(topic=topic).count() == 3


def test_a_view_with_a_range_reads_only_that(world: World) -> None:
    topic = world.new_topic()
    world.fill(topic, 20)
    ranged = sql_options(world, topic=topic, startingIndex="5", endingIndex="9")
    world.spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW r USING magnetar OPTIONS ({ranged})")
    texts = world.spark.sql("SELECT cast(value AS STRING) AS text FROM r ORDER BY index").collect()
    assert [row.text for row in texts] == ["000005", "000006", "000007", "000008"]


def test_two_filters_of_one_view_do_not_disturb_each_other(world: World) -> None:
    topic = world.new_topic()
    world.fill(topic, 20)
    world.spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW f USING magnetar OPTIONS ({sql_options(world, topic=topic)})")
    assert world.spark.sql("SELECT * FROM f WHERE index >= 15").count() == 5
    assert world.spark.sql("SELECT * FROM f").count() == 20
    both = world.spark.sql("SELECT * FROM f WHERE index < 5 UNION ALL SELECT * FROM f WHERE index >= 15")
    assert both.count() == 10


def test_a_catalog_table_that_lost_its_options_says_what_to_use(
    world: World, refused: Callable[[Callable[[], Any]], str]
) -> None:
    topic = world.new_topic()
    world.spark.sql("DROP TABLE IF EXISTS kept")
    said = refused(
        lambda: (
            world.spark.sql(f"CREATE TABLE kept USING magnetar OPTIONS ({sql_options(world, topic=topic)})"),
            world.spark.sql("SELECT * FROM kept").collect(),
        )
    )
    assert "TEMPORARY VIEW" in said


def test_sql_joins_a_topic_with_a_table(world: World) -> None:
    topic = world.new_topic()
    world.fill(topic, 20)
    world.spark.createDataFrame([("k1", "one"), ("k2", "two")], "key STRING, name STRING").createOrReplaceTempView("n")
    world.spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW j USING magnetar OPTIONS ({sql_options(world, topic=topic)})")
    joined = world.spark.sql(
        "SELECT n.name, count(*) AS messages FROM j JOIN n ON cast(j.key AS STRING) = n.key GROUP BY n.name"
    )
    assert {row.name: row.messages for row in joined.collect()} == {"one": 4, "two": 4}
