"""Orders from a topic, a table of customers, and large orders back to another topic.

topic orders → table orders → view customers
                           ↘ topic large-orders
"""

from __future__ import annotations

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark = SparkSession.active()

CLUSTER = {
    "serviceUrl": os.environ.get("MAGNETAR_URL", "pulsar://127.0.0.1:6650"),
    "adminUrl": os.environ.get("MAGNETAR_ADMIN_URL", "http://127.0.0.1:8080"),
}


@dp.table(comment="Every order, once.")
def orders() -> DataFrame:
    where = {**CLUSTER, "topic": "orders", "startingOffsets": "earliest"}
    messages = spark.readStream.format("magnetar").options(**where).load()
    order = f.from_json(f.col("value").cast("string"), "customer string, amount double")
    return messages.select("message_id", "publish_time", order.alias("order")).select(
        "message_id", "publish_time", "order.*"
    )


@dp.materialized_view(comment="What each customer ordered in all.")
def customers() -> DataFrame:
    placed = spark.read.table("orders").groupBy("customer")
    return placed.agg(f.count("*").alias("orders"), f.round(f.sum("amount"), 2).alias("amount"))


dp.create_sink("large_orders", format="magnetar", options={**CLUSTER, "topic": "large-orders"})


@dp.append_flow(target="large_orders", name="pick_large_orders")
def pick_large_orders() -> DataFrame:
    large = spark.readStream.table("orders").where("amount >= 900")
    return large.select(f.col("customer").alias("key"), f.to_json(f.struct("customer", "amount")).alias("value"))
