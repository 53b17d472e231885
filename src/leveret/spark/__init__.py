"""Leveret and Spark: the data source `amqp` (`leveret.spark.source`), which the module `pyspark_amqp` shows to Spark."""
