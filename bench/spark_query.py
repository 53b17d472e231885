"""A query to be killed, in a process of its own: `python bench/spark_query.py JSON`, run by `bench/spark_kills.py`.

It reads what is there (AvailableNow) and ends. `source` and `sink` are options, of format `amqp` and of the format that the
sink names. With `dump`, a file, the bodies of the table that the sink has written go there in the end, one a line.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession


def main(argument: str) -> None:
    given = json.loads(argument)
    session = (
        SparkSession.builder.master(given.get("master", "local[2,3]")).appName("kills").config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "700m").config("spark.local.dir", given["directory"])
        .config("spark.sql.warehouse.dir", given["directory"]).config("spark.log.level", "ERROR")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1").getOrCreate())
    sink = dict(given["sink"])
    rows = session.readStream.format("amqp").options(**given["source"]).load().select("message_id", "body")
    query = (rows.writeStream.format(sink.pop("format")).options(**sink)
             .option("checkpointLocation", given["checkpoint"]).trigger(availableNow=True).start())
    query.awaitTermination()
    if given.get("dump"):
        found = session.read.parquet(sink["path"]).select("body").collect()
        with open(given["dump"], "w", encoding="utf-8") as file:
            file.writelines(f"{row.body.decode()}\n" for row in found)
    session.stop()


if __name__ == "__main__":
    main(sys.argv[1])
