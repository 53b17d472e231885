"""Leveret's integration with Spark: the data source `amqp`, which the module `pyspark_amqp` exposes to Spark, and pipelines."""
