"""Leveret's Spark integration: pipelines, and the data source `amqp`, which the module `pyspark_amqp` exposes to Spark."""
