"""The stream `orders` as a table of typed rows, and sales by country.

Spark keeps a checkpoint for each table. When the pipeline runs again, it resumes after the last message that it has read,
so that each message is in the tables exactly once.
"""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

SCHEMA = "id BIGINT, country STRING, amount DOUBLE"

spark = SparkSession.active()


@dp.table
def orders() -> DataFrame:
    messages = (
        spark.readStream.format("amqp")
        .option("url", os.environ.get("LEVERET_URL", "amqp://guest:guest@localhost:5672/"))
        .option("stream", "orders")
        .option("startingOffsets", "earliest")
        .option("columns", "offset,append_time,routing_key,body")
        .load()
    )
    order = F.from_json(F.col("body").cast("string"), SCHEMA).alias("order")
    return messages.select("offset", "append_time", "routing_key", order).select(
        "offset", "append_time", "routing_key", "order.*"
    )


@dp.materialized_view
def sales() -> DataFrame:
    return spark.read.table("orders").groupBy("country").agg(F.count("*").alias("orders"), F.sum("amount").alias("amount"))
